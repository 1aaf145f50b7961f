#include "server/comm/host/host_peer_memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <span>
#include <utility>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "common/base/status.h"
#include "fmt/format.h"
#include "server/comm/host/peer_protocol.h"

namespace ckptd {
namespace {

// Descriptors are closed once mapped, so a large slab does not need one per segment at the same
// time.
constexpr size_t kSegmentsAtOnce = 256;

// Adds the rank's name to `error`.
absl::Status WithRank(const absl::Status& error, const PeerSlab& slab) {
  const std::string context = fmt::format("mapping the memory of rank {}", slab.rank);
  const std::string rank = std::to_string(slab.rank);
  switch (error.code()) {
    case absl::StatusCode::kUnavailable:
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kRankFailed,
                       context + ": " + MessageOf(error) +
                           "; its run directory must be visible to this daemon",
                       {{"rank", rank}});
    case absl::StatusCode::kDeadlineExceeded:
      return MakeError(absl::StatusCode::kUnavailable, reason::kRankLost,
                       context + ": " + MessageOf(error), {{"rank", rank}});
    case absl::StatusCode::kPermissionDenied:
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kRankFailed,
                       context + ": " + MessageOf(error) +
                           "; it was sealed before this daemon mapped it, so that rank must "
                           "replace it (it does so for a new leader)",
                       {{"rank", rank}});
    default:
      return WithFact(WithContext(error, context), "rank", rank);
  }
}

// The driver may refuse another process's memory, or have no room on that GPU to map it. The load
// need not fail then, because bytes can be sent instead.
absl::Status NotImported(const absl::Status& error, const PeerSlab& slab) {
  const bool refused = error.code() == absl::StatusCode::kUnavailable ||
                       error.code() == absl::StatusCode::kResourceExhausted;
  if (!refused) return WithRank(error, slab);
  Facts facts = FactsOf(error);
  facts["rank"] = std::to_string(slab.rank);
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kRankFailed,
                   fmt::format("mapping the memory of rank {}: {}", slab.rank, MessageOf(error)),
                   facts);
}

absl::Status BadDescription(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest, message);
}

absl::Status CheckDescription(const PeerSlab& slab) {
  std::set<uint64_t> ids;
  for (const PeerSlab::PeerSegment& segment : slab.segments) {
    if (segment.bytes == 0) return BadDescription(fmt::format("segment {} is empty", segment.id));
    if (!ids.insert(segment.id).second) {
      return BadDescription(fmt::format("segment {} is in the slab twice", segment.id));
    }
  }
  if (slab.segments.size() > kMaxPeerSegments) return BadDescription("too many segments");
  return absl::OkStatus();
}

// Maps the whole segment behind `fd` for writing. Does not fault its pages in: the sender of `fd`
// determines its size, and pages would take memory.
absl::StatusOr<Mapping> MapSegment(const UniqueFd& fd) {
  // If the owner could shrink the file, our writes could raise SIGBUS.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  const bool sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  if (!sealed && !IsNamedFileInMemory(fd.get())) {
    return BadDescription("a segment is not a memfd with a sealed size, and no file of a slab folder");
  }
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "asking for a segment's size");
  const int fds[] = {fd.get()};
  const uint64_t sizes[] = {static_cast<uint64_t>(info.st_size)};
  return MapSlab(fds, sizes, {.mode = MapMode::kSharedWritable, .populate = false});
}

absl::Status TooSmall(const PeerSlab::PeerSegment& segment, uint64_t holds) {
  return BadDescription(fmt::format("segment {} should hold {} bytes and holds {}", segment.id,
                                    segment.bytes, holds));
}

}  // namespace

void HostPeerMemory::SetSecret(std::string secret) {
  MutexLock lock(mutex_);
  secret_ = std::move(secret);
}

std::string HostPeerMemory::Secret() {
  MutexLock lock(mutex_);
  return secret_;
}

absl::StatusOr<HostPeerMemory::Mappings> HostPeerMemory::MapMissing(
    const PeerSlab& slab, const Peer& peer, std::chrono::steady_clock::time_point deadline) {
  std::vector<uint64_t> missing;
  for (const PeerSlab::PeerSegment& segment : slab.segments) {
    if (peer.mappings.count(segment.id) == 0) missing.push_back(segment.id);
  }
  Mappings mapped;
  if (missing.empty()) return mapped;
  const std::string secret = Secret();
  for (size_t done = 0; done < missing.size();) {
    const size_t count = std::min(kSegmentsAtOnce, missing.size() - done);
    const auto ids = std::span(missing).subspan(done, count);
    CKPTD_ASSIGN_OR_RETURN(const std::vector<UniqueFd> fds,
                           FetchPeerSegments(slab.endpoint, secret, ids, deadline));
    for (size_t i = 0; i < count; ++i) {
      CKPTD_ASSIGN_OR_RETURN(Mapping mapping, MapSegment(fds[i]));
      mapped[ids[i]].mapping = std::make_shared<const Mapping>(std::move(mapping));
    }
    done += count;
  }
  return mapped;
}

absl::StatusOr<SlabView> HostPeerMemory::Map(const PeerSlab& slab,
                                             std::chrono::steady_clock::time_point deadline) {
  if (slab.host != host_) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kRankFailed,
        fmt::format("mapping the memory of rank {}: it runs on another host ({}, this is {}), memory "
                    "is mapped on one host only",
                    slab.rank, slab.host, host_),
        {{"rank", std::to_string(slab.rank)}});
  }
  if (const absl::Status ok = CheckDescription(slab); !ok.ok()) return WithRank(ok, slab);
  return slab.device.empty() || slab.segments.empty() ? MapHost(slab, deadline)
                                                      : MapDevice(slab, deadline);
}

absl::StatusOr<SlabView> HostPeerMemory::MapDevice(
    const PeerSlab& slab, std::chrono::steady_clock::time_point deadline) {
  if (import_ == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDevice,
                     fmt::format("mapping the memory of rank {}: it is on {}, and this daemon uses "
                                 "no GPU",
                                 slab.rank, slab.device),
                     {{"rank", std::to_string(slab.rank)}});
  }
  if (slab.segments.size() != 1) {
    return WithRank(BadDescription("device memory comes as one segment"), slab);
  }
  const uint64_t ids[] = {slab.segments[0].id};
  const auto fds = FetchPeerSegments(slab.endpoint, Secret(), ids, deadline);
  if (!fds.ok()) return WithRank(fds.status(), slab);
  auto memory = import_(slab.device, fds->front(), slab.segments[0].bytes);
  if (!memory.ok()) return NotImported(memory.status(), slab);
  return SlabView{{}, *std::move(memory)};
}

absl::StatusOr<SlabView> HostPeerMemory::MapHost(const PeerSlab& slab,
                                                 std::chrono::steady_clock::time_point deadline) {
  Peer& peer = peers_[slab.rank];
  if (peer.incarnation != slab.incarnation) {
    peer.mappings.clear();
    peer.incarnation = slab.incarnation;
  }
  peer.endpoint = slab.endpoint;
  absl::StatusOr<Mappings> added = MapMissing(slab, peer, deadline);
  if (!added.ok()) return WithRank(added.status(), slab);
  SlabView view;
  for (const PeerSlab::PeerSegment& segment : slab.segments) {
    const auto fresh = added->find(segment.id);
    Mapped& mapped = fresh != added->end() ? fresh->second : peer.mappings.at(segment.id);
    const uint64_t holds = mapped.mapping->bytes();
    if (segment.bytes > holds) return WithRank(TooSmall(segment, holds), slab);
    const std::span<std::byte> used = mapped.mapping->span().first(segment.bytes);
    if (mapped.populated < used.size()) {
      PopulateForWriting(used.subspan(mapped.populated));
      mapped.populated = used.size() / kHugePageBytes * kHugePageBytes;
    }
    view.segments.push_back(used);
    view.mapped.push_back(mapped.mapping);
  }
  peer.mappings.merge(*added);
  return view;
}

void HostPeerMemory::Forget(uint32_t rank, const std::string& incarnation) {
  const auto peer = peers_.find(rank);
  if (peer != peers_.end() && peer->second.incarnation == incarnation) peers_.erase(peer);
}

uint64_t HostPeerMemory::KeepOnly(uint32_t rank, const std::vector<uint64_t>& segment_ids) {
  const auto peer = peers_.find(rank);
  if (peer == peers_.end()) return 0;
  const uint64_t before = MappedBytes(rank);
  const std::set<uint64_t> keep(segment_ids.begin(), segment_ids.end());
  for (auto it = peer->second.mappings.begin(); it != peer->second.mappings.end();) {
    it = keep.count(it->first) > 0 ? std::next(it) : peer->second.mappings.erase(it);
  }
  return before - MappedBytes(rank);
}

void HostPeerMemory::DropReleased(std::chrono::steady_clock::time_point deadline) {
  const std::string secret = Secret();
  // A daemon hands out the segments that it owns. For a daemon that has restarted, Forget will be
  // called.
  const auto released = [&](const Peer& peer, std::span<const uint64_t> ids) {
    const auto fds = FetchPeerSegments(peer.endpoint, secret, ids, deadline);
    return fds.status().code() == absl::StatusCode::kAborted;
  };
  for (auto& [rank, peer] : peers_) {
    std::vector<uint64_t> ids;
    for (const auto& [id, mapped] : peer.mappings) ids.push_back(id);
    for (size_t done = 0; done < ids.size(); done += kSegmentsAtOnce) {
      const auto some = std::span(ids).subspan(done).first(std::min(kSegmentsAtOnce, ids.size() - done));
      if (!released(peer, some)) continue;  // mostly none is released
      for (const uint64_t id : some) {
        if (released(peer, {&id, 1})) peer.mappings.erase(id);
      }
    }
  }
}

uint64_t HostPeerMemory::MappedBytes(uint32_t rank) const {
  const auto peer = peers_.find(rank);
  uint64_t bytes = 0;
  if (peer == peers_.end()) return bytes;
  for (const auto& [id, mapped] : peer->second.mappings) bytes += mapped.mapping->bytes();
  return bytes;
}

}  // namespace ckptd
