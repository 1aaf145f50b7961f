#include "common/base/slab_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr uint64_t kPage = 4096;

UniqueFd Memory(uint64_t bytes, char fill) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::vector<char> content(bytes, fill);
  EXPECT_EQ(::write(fd.get(), content.data(), bytes), static_cast<ssize_t>(bytes));
  return fd;
}

char At(const Mapping& slab, uint64_t offset) { return static_cast<char>(slab.data()[offset]); }

class SlabMapping : public testing::Test {
 protected:
  SlabMapping() {
    fds_.push_back(Memory(2 * kPage, 'a'));
    fds_.push_back(Memory(kPage, 'b'));
  }
  std::vector<UniqueFd> fds_;
  std::vector<uint64_t> bytes_ = {2 * kPage, 100};
};

TEST_F(SlabMapping, SegmentsLieBackToBack) {
  ASSERT_OK_AND_ASSIGN(const Mapping slab, MapSlab(fds_, bytes_, {}));
  EXPECT_EQ(slab.bytes(), 2 * kPage + 100);
  EXPECT_EQ(At(slab, 2 * kPage - 1), 'a');
  EXPECT_EQ(At(slab, 2 * kPage), 'b');
}

TEST_F(SlabMapping, StartsAtAHugePageBoundary) {
  ASSERT_OK_AND_ASSIGN(const Mapping slab, MapSlab(fds_, bytes_, {}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slab.data()) % kHugePageBytes, 0U);
}

TEST_F(SlabMapping, PrivateWritesStayPrivate) {
  ASSERT_OK_AND_ASSIGN(const Mapping slab, MapSlab(fds_, bytes_, {.mode = MapMode::kPrivate}));
  std::memset(slab.data(), 'z', slab.bytes());
  char first = 0;
  ASSERT_EQ(::pread(fds_[0].get(), &first, 1, 0), 1);
  EXPECT_EQ(first, 'a');
}

TEST_F(SlabMapping, SharedWritableWritesReachTheMemory) {
  ASSERT_OK_AND_ASSIGN(const Mapping slab,
                       MapSlab(fds_, bytes_, {.mode = MapMode::kSharedWritable}));
  slab.data()[0] = std::byte{'z'};
  char first = 0;
  ASSERT_EQ(::pread(fds_[0].get(), &first, 1, 0), 1);
  EXPECT_EQ(first, 'z');
}

TEST_F(SlabMapping, SharedReadOnlyMemoryCannotBeWritten) {
  ASSERT_OK_AND_ASSIGN(const Mapping slab, MapSlab(fds_, bytes_, {}));
  EXPECT_DEATH(slab.data()[0] = std::byte{'z'}, "");
}

TEST_F(SlabMapping, AWritableMappingOfSealedMemoryIsRefusedWithItsReason) {
  ASSERT_EQ(::fcntl(fds_[1].get(), F_ADD_SEALS, 0x0010 /* F_SEAL_FUTURE_WRITE */), 0);
  EXPECT_THAT(MapSlab(fds_, bytes_, {.mode = MapMode::kSharedWritable}),
              FailsWith(absl::StatusCode::kPermissionDenied, reason::kHandleKind));
}

TEST_F(SlabMapping, ASegmentLongerThanItsMemoryIsRefused) {
  bytes_[1] = kPage + 1;
  EXPECT_THAT(MapSlab(fds_, bytes_, {}), Says("should hold 4097 bytes and holds 4096"));
}

TEST_F(SlabMapping, AnInnerSegmentThatIsNoWholePageIsRefused) {
  bytes_[0] = 100;
  EXPECT_THAT(MapSlab(fds_, bytes_, {}), Says("no multiple"));
}

TEST_F(SlabMapping, SizesThatOverflowAreRefused) {
  bytes_[0] = std::numeric_limits<uint64_t>::max() - kPage + 1;
  EXPECT_THAT(MapSlab(fds_, bytes_, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST_F(SlabMapping, AnEmptySegmentIsRefused) {
  bytes_[1] = 0;
  EXPECT_THAT(MapSlab(fds_, bytes_, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST_F(SlabMapping, FewerDescriptorsThanSegmentsAreRefused) {
  fds_.pop_back();
  EXPECT_THAT(MapSlab(fds_, bytes_, {}), Says("1 descriptors for 2 segments"));
}

TEST_F(SlabMapping, ADescriptorThatIsNoMemoryIsRefused) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd other(ends[0]);
  fds_[1] = UniqueFd(ends[1]);
  EXPECT_THAT(MapSlab(fds_, bytes_, {}), Says("not of memory"));
}

TEST_F(SlabMapping, ADescriptorOfAPathAloneIsRefused) {
  fds_[1] = UniqueFd(::open(("/proc/self/fd/" + std::to_string(fds_[0].get())).c_str(),
                            O_PATH | O_CLOEXEC));
  EXPECT_THAT(MapSlab(fds_, bytes_, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST(Reservation, MoreAddressSpaceThanThereIsIsNoMemory) {
  EXPECT_THAT(ReserveAligned(uint64_t{1} << 60),
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
}

// Bytes of address space this process has taken.
uint64_t AddressSpace() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * kPage;
}

TEST(Reservation, KeepsNothingOfTheSlackAroundTheAlignedPart) {
  const uint64_t before = AddressSpace();
  std::vector<Mapping> held;
  for (int i = 0; i < 64; ++i) {
    ASSERT_OK_AND_ASSIGN(held.emplace_back(), ReserveAligned(kPage));
  }
  EXPECT_LT(AddressSpace() - before, 32 * kHugePageBytes);
}

}  // namespace
}  // namespace ckptd
