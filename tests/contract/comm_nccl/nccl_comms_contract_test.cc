// NCCL's communicators, with one process per rank: on the fake NCCL and the fake driver, or on a
// real GPU that they share (see group.h).
#include "server/comm/nccl/nccl_comms.h"

#include "tests/contract/comm/comm_contract.h"
#include "tests/unit/server/comm/nccl/group.h"

namespace ckptd {
namespace {

// Device memory that the driver fills and reads.
class DeviceBytes final : public StagedMemory {
 public:
  DeviceBytes(const std::shared_ptr<CudaDevice>& device, uint64_t bytes)
      : memory_(CudaAllocation::Create(device, bytes).value()),
        stream_(CudaStream::Make(device).value()),
        bytes_(bytes) {
    Fill(0, bytes, 0);
  }
  void Fill(uint64_t offset, uint64_t bytes, int value) {
    Do([&](const CudaDriver& driver) {
      return driver.MemsetD8Async(memory_.address() + offset, static_cast<unsigned char>(value),
                                  bytes, stream_.get());
    });
  }
  uint64_t bytes() const override { return bytes_; }
  uint64_t address() const override { return memory_.address(); }
  unsigned Lanes() const override { return 1; }
  absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() override {
    return absl::UnimplementedError("filled by the driver");
  }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) override {
    Do([&](const CudaDriver& driver) {
      return driver.MemcpyDtoHAsync(out.data(), memory_.address() + offset, out.size(),
                                    stream_.get());
    });
    return absl::OkStatus();
  }

 private:
  void Do(const std::function<CUresult(const CudaDriver&)>& queue) const {
    const CudaScope scope(*memory_.device());
    EXPECT_EQ(queue(memory_.device()->driver()), CUDA_SUCCESS);
    EXPECT_TRUE(stream_.Wait(std::chrono::seconds(60)).ok());
  }

  const CudaAllocation memory_;
  const CudaStream stream_;
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
        return std::make_unique<DeviceBytes>(member.device, bytes);
      };
      self.fill = [](StagedMemory& memory, uint64_t offset, uint64_t bytes, int value) {
        static_cast<DeviceBytes&>(memory).Fill(offset, bytes, value);
      };
      body(self);
    });
    EXPECT_EQ(group_.world().NcclTraced("violation"), 0);
    EXPECT_EQ(group_.world().Traced("violation"), 0);
  }

 private:
  NcclGroup group_;
};

// When queued work runs: at once, when a thread waits, or later by itself.
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
INSTANTIATE_TYPED_TEST_SUITE_P(Nccl, CommContract, Drivers);

}  // namespace
}  // namespace ckptd
