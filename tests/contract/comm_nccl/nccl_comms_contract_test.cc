// NCCL's communicators, on the fake NCCL and the fake driver, a process for each rank.
#include "server/comm/nccl/nccl_comms.h"

#include <cstring>

#include "tests/contract/comm/comm_contract.h"
#include "tests/unit/server/comm/nccl/group.h"

namespace ckptd {
namespace {

// The fake's device memory is this process's.
class DeviceBytes final : public StagedMemory {
 public:
  explicit DeviceBytes(CudaAllocation memory, uint64_t bytes)
      : memory_(std::move(memory)), bytes_(bytes) {}
  uint64_t bytes() const override { return bytes_; }
  uint64_t address() const override { return memory_.address(); }
  unsigned Lanes() const override { return 1; }
  absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() override {
    return absl::UnimplementedError("filled by address");
  }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) override {
    std::memcpy(out.data(), reinterpret_cast<const std::byte*>(address()) + offset, out.size());
    return absl::OkStatus();
  }

 private:
  const CudaAllocation memory_;
  const uint64_t bytes_;
};

class ProcessesBench {
 public:
  explicit ProcessesBench(const std::string& driver) : group_("", driver) {}

  void Run(const std::vector<uint32_t>& names, const std::function<void(const CommRank&)>& body) {
    group_.Run(static_cast<uint32_t>(names.size()), [&](const Member& member) {
      NcclComms comms(member.library, [&member] { return member.device; });
      CommRank self;
      self.rank = member.rank;
      self.names = names;
      self.comms = &comms;
      self.id.assign(reinterpret_cast<const char*>(member.id.data()), member.id.size());
      self.memory = [&member](uint64_t bytes) {
        return std::make_unique<DeviceBytes>(member.Memory(bytes, 0), bytes);
      };
      body(self);
    });
    EXPECT_EQ(group_.world().NcclTraced("violation"), 0);
    EXPECT_EQ(group_.world().Traced("violation"), 0);
  }

 private:
  NcclGroup group_;
};

// When work that was queued happens: at once, when somebody waits, or later by itself.
struct Eager : ProcessesBench {
  Eager() : ProcessesBench("lazy = 0") {}
};
struct Lazy : ProcessesBench {
  Lazy() : ProcessesBench("lazy = 1") {}
};
struct Late : ProcessesBench {
  Late() : ProcessesBench("lazy_ms = 1") {}
};

using Drivers = ::testing::Types<Eager, Lazy, Late>;
INSTANTIATE_TYPED_TEST_SUITE_P(FakeNccl, CommContract, Drivers);

}  // namespace
}  // namespace ckptd
