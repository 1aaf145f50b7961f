// Ranks in processes of their own, on the fake driver and the fake NCCL. If CKPTD_TEST_GPU is
// set, they share the machine's first GPU and use the NCCL that CKPTD_TEST_NCCL names.
#ifndef CKPTD_TESTS_UNIT_SERVER_COMM_NCCL_GROUP_H_
#define CKPTD_TESTS_UNIT_SERVER_COMM_NCCL_GROUP_H_

#include <dlfcn.h>

#include <functional>
#include <string>
#include <vector>

#include "common/cuda/allocation.h"
#include "common/cuda/stream.h"
#include "server/comm/nccl/communicator.h"
#include "server/comm/nccl/environment.h"
#include "tests/unit/fakes/cuda/world.h"

namespace ckptd {

using fake_cuda::Channel;
using fake_cuda::Child;

constexpr unsigned kMostSeconds = 90;

inline Communicator::Deadline In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}
// A deadline for events that must happen.
inline Communicator::Deadline Patiently() { return In(std::chrono::seconds(60)); }

class NcclWorld : public fake_cuda::World {
 public:
  explicit NcclWorld(const std::string& nccl = "", const std::string& cuda = "lazy_ms = 0")
      : World("gpus = 3\n" + cuda) {
    std::ofstream(folder() + "/nccl") << nccl << "\ntrace = nccl-trace\n";
  }
  Child StartOne(const std::function<void()>& body) const {
    return Start([&]() noexcept {
      ::alarm(kMostSeconds);  // ends the process, whatever it waits for
      ::setenv("CKPTD_FAKE_NCCL", (folder() + "/nccl").c_str(), 1);
      body();
    });
  }
  void Run(const std::function<void()>& body) const {
    EXPECT_EQ(StartOne(body).Wait(), 0) << "see above what failed in the child";
  }
  int NcclTraced(const std::string& text) const {
    std::ifstream trace(folder() + "/nccl-trace");
    int count = 0;
    for (std::string line; std::getline(trace, line);) count += line.find(text) != line.npos;
    return count;
  }
};

// What the body of a rank gets.
struct Member {
  uint32_t rank = 0;
  std::shared_ptr<const NcclLibrary> library;
  std::shared_ptr<CudaDevice> device;
  NcclUniqueId id{};
  uint32_t world_size = 0;
  const Channel* signal = nullptr;

  // One rank, or the test, signals at end 0; one rank waits for it.
  void Say() const { signal->Say(0); }
  void Hear() const { signal->Hear(1); }

  CommunicatorOptions Options() const {
    CommunicatorOptions options;
    options.id = id;
    options.rank = rank;
    options.world_size = world_size;
    options.name = "test";
    return options;
  }
  absl::StatusOr<std::unique_ptr<Communicator>> TryJoin(Communicator::Deadline deadline) const {
    return Communicator::Join(library, device, Options(), deadline);
  }
  std::unique_ptr<Communicator> Join() const {
    auto joined = TryJoin(Patiently());
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined.ok() ? *std::move(joined) : nullptr;
  }
  // Device memory of `bytes` equal bytes. With the fake it is memory of this process.
  CudaAllocation Memory(uint64_t bytes, unsigned char value) const {
    auto memory = CudaAllocation::Create(device, bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    std::memset(reinterpret_cast<void*>(memory->address()), value, bytes);
    return *std::move(memory);
  }
};

inline unsigned char ByteAt(const CudaAllocation& memory, uint64_t offset) {
  return reinterpret_cast<const unsigned char*>(memory.address())[offset];
}

// Ranks with one id, rank r on GPU r.
class NcclGroup {
 public:
  using Body = std::function<void(const Member&)>;

  explicit NcclGroup(const std::string& nccl = "", const std::string& cuda = "lazy_ms = 0")
      : world_(nccl, cuda) {}

  // Starts `ranks` of a group of `world_size`. Rank 0 must be among them.
  void Start(std::vector<uint32_t> ranks, uint32_t world_size, const Body& body) {
    channels_ = std::vector<Channel>(world_size);
    for (const uint32_t rank : ranks) {
      children_.push_back(
          world_.StartOne([this, rank, world_size, body] { RunMember(rank, world_size, body); }));
    }
    NcclUniqueId id{};
    channels_[0].Receive(0, id.data(), id.size());
    for (const uint32_t rank : ranks) {
      if (rank != 0) channels_[rank].Send(0, id.data(), id.size());
    }
  }
  // Runs all ranks of a group to their ends.
  void Run(uint32_t world_size, const Body& body) {
    std::vector<uint32_t> ranks(world_size);
    for (uint32_t rank = 0; rank < world_size; ++rank) ranks[rank] = rank;
    Start(ranks, world_size, body);
    for (Child& child : children_) EXPECT_EQ(child.Wait(), 0) << "see above what failed in a rank";
  }
  Child& child(size_t index) { return children_[index]; }
  const Channel& signal() const { return signal_; }
  const NcclWorld& world() const { return world_; }

 private:
  void RunMember(uint32_t rank, uint32_t world_size, const Body& body) const {
    ApplyNcclEnvironment(CleanNcclEnvironment(environ));  // the first thing that a daemon does
    const char* const real = ::getenv("CKPTD_TEST_GPU") == nullptr ? nullptr : ::getenv("CKPTD_TEST_NCCL");
    if (real == nullptr) {
      ASSERT_NE(::dlopen(CKPTD_FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL), nullptr);
    }
    Member member;
    member.rank = rank;
    member.world_size = world_size;
    member.signal = &signal_;
    member.library =
        NcclLibrary::Open({real == nullptr ? CKPTD_FAKE_NCCL_LIBRARY : real, {}}).value();
    const CudaDriver& driver = **CudaDriver::Load();
    const size_t gpu = real == nullptr ? rank : 0;
    member.device = CudaDevice::Open(driver, ListGpus(driver).value().at(gpu)).value();
    if (rank == 0) {
      member.id = member.library->MakeUniqueId().value();
      channels_[0].Send(1, member.id.data(), member.id.size());
    } else {
      channels_[rank].Receive(1, member.id.data(), member.id.size());
    }
    body(member);
  }

  const NcclWorld world_;
  std::vector<Channel> channels_;
  Channel signal_;
  std::vector<Child> children_;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_UNIT_SERVER_COMM_NCCL_GROUP_H_
