// Units at any address, up to both ends of memory.
#include "server/memory/cuda/kernels/units.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace ckptd::kernels {
namespace {

// A page between two that fault.
class LonePage {
 public:
  LonePage() : size_(static_cast<size_t>(::sysconf(_SC_PAGESIZE))) {
    memory_ = ::mmap(nullptr, 3 * size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) return;
    ::mprotect(begin(), size_, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < size_; ++i) begin()[i] = static_cast<unsigned char>(i * 37 + i / 256);
  }
  ~LonePage() { ::munmap(memory_, 3 * size_); }
  LonePage(const LonePage&) = delete;
  LonePage& operator=(const LonePage&) = delete;

  unsigned char* begin() const { return static_cast<unsigned char*>(memory_) + size_; }
  size_t size() const { return size_; }

 private:
  const size_t size_;
  void* memory_ = nullptr;
};

template <typename Raw>
class KernelUnits : public ::testing::Test {};
using Raws = ::testing::Types<uint16_t, uint32_t, uint64_t, Bytes16>;
TYPED_TEST_SUITE(KernelUnits, Raws);

TYPED_TEST(KernelUnits, AreReadAtAnyAddressAndNoPageBesideTheirs) {
  const LonePage page;
  for (size_t at = 0; at + sizeof(TypeParam) <= page.size(); ++at) {
    unsigned char* const wanted = page.begin() + at;
    const auto loaded = Unaligned<TypeParam>::LoadAt(reinterpret_cast<uint64_t>(wanted));
    const TypeParam got = Unaligned<TypeParam>::UnitOf(loaded);
    ASSERT_EQ(std::memcmp(&got, wanted, sizeof got), 0) << "at byte " << at;
  }
}

}  // namespace
}  // namespace ckptd::kernels
