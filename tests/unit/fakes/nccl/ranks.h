// Ranks in processes of their own, each on its own fake GPU, for the tests of the fake NCCL.
#ifndef CKPTD_TESTS_UNIT_FAKES_NCCL_RANKS_H_
#define CKPTD_TESTS_UNIT_FAKES_NCCL_RANKS_H_

#include <nccl.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/fakes/cuda/world.h"

namespace ckptd::fake_nccl {

using fake_cuda::Channel;
using fake_cuda::Child;
using fake_cuda::kPatienceMs;
using Clock = std::chrono::steady_clock;

constexpr unsigned kMostSeconds = 90;

// Until `done()`; false: not within `patience`.
template <typename Done>
bool Eventually(Done done,
                std::chrono::milliseconds patience = std::chrono::milliseconds(kPatienceMs)) {
  for (const auto end = Clock::now() + patience; !done();) {
    if (Clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// What a rank knows.
struct Rank {
  int rank = 0;
  int world = 0;
  const Channel* to_test = nullptr;  // end 1 is the rank's
  const Channel* signal = nullptr;   // of all ranks

  // One rank gives the signal, another one waits for it.
  void Say() const { signal->Say(0); }
  void Hear() const { signal->Hear(1); }
  // Rank 0's id, by way of the test.
  ncclUniqueId Id() const {
    ncclUniqueId id{};
    if (rank == 0) {
      EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
      to_test->Send(1, &id, sizeof id);
    } else {
      to_test->Receive(1, &id, sizeof id);
    }
    return id;
  }
};

inline ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

// The communicator's answer once it is not in progress; ncclInProgress: it stays so.
inline ncclResult_t Settled(
    ncclComm_t comm, std::chrono::milliseconds patience = std::chrono::milliseconds(kPatienceMs)) {
  ncclResult_t state = ncclInProgress;
  static_cast<void>(Eventually(
      [&] {
        EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
        return state != ncclInProgress;
      },
      patience));
  return state;
}

inline ncclComm_t Joined(const Rank& self, const ncclUniqueId& id) {
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NonBlocking();
  EXPECT_EQ(ncclCommInitRankConfig(&comm, self.world, id, self.rank, &config), ncclInProgress);
  EXPECT_EQ(Settled(comm), ncclSuccess) << ncclGetLastError(nullptr);
  return comm;
}
inline ncclComm_t Joined(const Rank& self) { return Joined(self, self.Id()); }

inline void Leave(ncclComm_t comm) {
  EXPECT_EQ(ncclCommFinalize(comm), ncclInProgress);
  EXPECT_EQ(Settled(comm), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

inline CUstream NewStream() {
  CUstream stream = nullptr;
  EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  return stream;
}

inline bool Done(CUstream stream,
                 std::chrono::milliseconds patience = std::chrono::milliseconds(kPatienceMs)) {
  return Eventually([&] { return cuStreamQuery(stream) == CUDA_SUCCESS; }, patience);
}

// Device memory of so many equal bytes, which the test may look at.
inline unsigned char* Memory(std::size_t bytes, unsigned char value) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, bytes), CUDA_SUCCESS);
  std::memset(reinterpret_cast<void*>(address), value, bytes);
  return reinterpret_cast<unsigned char*>(address);
}

inline bool Holds(const unsigned char* memory, std::size_t bytes, unsigned char value) {
  return std::all_of(memory, memory + bytes, [&](unsigned char byte) { return byte == value; });
}

// GPUs and ranks. `nccl` and `cuda` are lines of the fakes' configurations.
class Ranks : public fake_cuda::World {
 public:
  explicit Ranks(const std::string& nccl = "", const std::string& cuda = "lazy_ms = 0")
      : World("gpus = 4\n" + cuda) {
    std::ofstream(folder() + "/nccl") << nccl << "\ntrace = nccl-trace\n";
  }

  // Starts a rank on GPU `gpu`; the test has end 0 of its channel.
  Child StartRank(int rank, int world, const std::function<void(const Rank&)>& body, int gpu,
                  const Channel& channel) const {
    return Start([this, rank, world, body, gpu, &channel] {
      ::alarm(kMostSeconds);  // whatever it waits for
      ::setenv("CKPTD_FAKE_NCCL", (folder() + "/nccl").c_str(), 1);
      fake_cuda::UseDevice(gpu);
      body({rank, world, &channel, &signal_});
    });
  }
  // Passes rank 0's id on to the others.
  static void PassId(const std::vector<Channel>& channels) {
    ncclUniqueId id{};
    channels[0].Receive(0, &id, sizeof id);
    for (std::size_t rank = 1; rank < channels.size(); ++rank) {
      channels[rank].Send(0, &id, sizeof id);
    }
  }
  // Runs a body on every rank to its end; each asks for the id once.
  void RunRanks(int world, const std::function<void(const Rank&)>& body) const {
    const std::vector<Channel> channels(static_cast<std::size_t>(world));
    std::vector<Child> children;
    for (int rank = 0; rank < world; ++rank) {
      children.push_back(
          StartRank(rank, world, body, rank, channels[static_cast<std::size_t>(rank)]));
    }
    PassId(channels);
    for (Child& child : children) EXPECT_EQ(child.Wait(), 0) << "see above what failed in a rank";
  }
  const Channel& signal() const { return signal_; }
  // How many lines of NCCL's trace hold a text.
  int NcclTraced(const std::string& text) const {
    std::ifstream trace(folder() + "/nccl-trace");
    int count = 0;
    for (std::string line; std::getline(trace, line);) count += line.find(text) != line.npos;
    return count;
  }

 private:
  Channel signal_;
};

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_UNIT_FAKES_NCCL_RANKS_H_
