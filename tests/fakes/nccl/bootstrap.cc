#include "tests/fakes/nccl/bootstrap.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "tests/fakes/cuda/trace.h"
#include "tests/fakes/nccl/config.h"
#include "tests/fakes/nccl/warn.h"

namespace ckptd::fake_nccl {
namespace {

constexpr int kMaxWorld = 4096;

struct Guest {
  UniqueFd fd;
  RankInfo info;
};

// bootstrapRoot (bootstrap.cc): hears as many ranks as the first one says there are, then its
// listener closes. When they contradict each other it gives up, and who has joined waits for
// ever: for that reason their sockets are kept.
void ServeRanks(const UniqueFd& listener) {
  const Stop never{false};
  std::vector<Guest> guests;
  do {
    Guest guest{Accept(listener.get(), never), {}};
    if (!guest.fd.valid() || !Read(guest.fd.get(), guest.info, never)) continue;
    const int world = guests.empty() ? guest.info.world : guests.front().info.world;
    const bool twice = std::any_of(guests.begin(), guests.end(), [&](const Guest& other) {
      return other.info.rank == guest.info.rank;
    });
    guests.push_back(std::move(guest));
    if (twice || guests.back().info.world != world) {
      fake_cuda::TraceViolation(twice ? "one rank joins twice" : "ranks differ in their count");
      for (Guest& waiting : guests) static_cast<void>(waiting.fd.Release());
      return;
    }
  } while (guests.empty() || guests.size() < static_cast<std::size_t>(guests.front().info.world));
  std::sort(guests.begin(), guests.end(),
            [](const Guest& a, const Guest& b) { return a.info.rank < b.info.rank; });
  for (const Guest& to : guests) {
    for (const Guest& about : guests) static_cast<void>(Write(to.fd.get(), about.info, never));
  }
}

// initTransportsRank (init.cc), behind its first exchange.
ncclResult_t CheckPeers(const std::vector<RankInfo>& all, const RankInfo& self) {
  for (const RankInfo& one : all) {
    if (one.version != self.version) {
      return Warn(ncclInvalidUsage, "ranks run NCCL of different versions");
    }
    for (const RankInfo& other : all) {
      const bool same = &one != &other && one.host == other.host &&
                        std::memcmp(one.gpu, other.gpu, sizeof one.gpu) == 0;
      // The variable is known since 2.30.
      const bool may = self.shares_gpu != 0 && self.version >= NCCL_VERSION(2, 30, 0);
      if (same && !may) return Warn(ncclInvalidUsage, "two ranks use one GPU");
    }
  }
  return ncclSuccess;
}

// One connection for each pair: the higher rank connects.
bool ConnectAll(int listener, const std::vector<RankInfo>& all, const RankInfo& self,
                const Stop& stop, std::vector<UniqueFd>& links) {
  links.resize(all.size());
  const auto until = Clock::now() + std::chrono::milliseconds(config().connect_ms);
  for (int rank = 0; rank < self.rank; ++rank) {
    UniqueFd fd = Connect(all[static_cast<std::size_t>(rank)].address, until, stop);
    if (!fd.valid() || !Write(fd.get(), self.rank, stop)) return false;
    links[static_cast<std::size_t>(rank)] = std::move(fd);
  }
  for (int missing = self.world - 1 - self.rank; missing > 0; --missing) {
    UniqueFd fd = Accept(listener, stop);
    int rank = 0;
    if (!fd.valid() || !Read(fd.get(), rank, stop)) return false;
    if (rank <= self.rank || rank >= self.world) return false;
    links[static_cast<std::size_t>(rank)] = std::move(fd);
  }
  return true;
}

}  // namespace

ncclResult_t ServeId(ncclUniqueId& id) {
  Address address;
  auto listener = std::make_shared<UniqueFd>(Listen(config().interface, address));
  if (!listener->valid()) return Warn(ncclSystemError, "no socket for the unique id");
  id = {};
  std::memcpy(id.internal, &address, sizeof address);
  std::thread([listener] {
    ServeRanks(*listener);
    listener->Reset();
  }).detach();
  return ncclSuccess;
}

ncclResult_t Join(const ncclUniqueId& id, RankInfo self, const Stop& stop,
                  std::vector<UniqueFd>& links) {
  Address root;
  std::memcpy(&root, id.internal, sizeof root);
  if (Text(root).empty()) return Warn(ncclInvalidArgument, "no unique id of this library");
  const UniqueFd listener = Listen(config().interface, self.address);
  if (!listener.valid()) return Warn(ncclSystemError, "no socket to listen at");
  const auto until = Clock::now() + std::chrono::milliseconds(config().connect_ms);
  const UniqueFd fd = Connect(root, until, stop);
  // socket.cc: after its retries, a refused connection is a remote error.
  if (!fd.valid()) return Warn(ncclRemoteError, "nobody serves the unique id (used before?)");
  if (!Write(fd.get(), self, stop)) return Warn(ncclRemoteError, "the id's process is gone");
  std::vector<RankInfo> all(static_cast<std::size_t>(std::clamp(self.world, 1, kMaxWorld)));
  for (RankInfo& one : all) {
    if (Read(fd.get(), one, stop)) continue;
    // In the real one the root connects to the rank, so its end is not noticed.
    while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return ncclSystemError;
  }
  const ncclResult_t good = CheckPeers(all, self);
  if (good != ncclSuccess) return good;
  if (!ConnectAll(listener.get(), all, self, stop, links)) {
    return Warn(ncclRemoteError, "a rank is gone before all had joined");
  }
  return ncclSuccess;
}

}  // namespace ckptd::fake_nccl
