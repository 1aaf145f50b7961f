// PeerMemory on one host: maps the memfd segments of the other daemons and keeps
// the mappings, so that a later load costs no page tables.
#ifndef CKPTD_SERVER_COMM_HOST_HOST_PEER_MEMORY_H_
#define CKPTD_SERVER_COMM_HOST_HOST_PEER_MEMORY_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "server/comm/peer_memory.h"

namespace ckptd {

// Not thread-safe, but for SetSecret.
class HostPeerMemory final : public PeerMemory {
 public:
  // `host`: identity of this host, as PeerSlab::host gives it.
  explicit HostPeerMemory(std::string host) : host_(std::move(host)) {}

  // The group's; see PeerSocket::SetSecret. From any thread.
  void SetSecret(std::string secret);

  // Segments that were mapped before, for the same incarnation of that daemon,
  // cost nothing. Besides PeerMemory's errors: FailedPrecondition RANK_FAILED
  // when a segment was sealed before we could map it (that daemon must replace
  // its memory: MemoryBackend::NewReader), InvalidArgument for a description
  // that cannot be. Each names the rank; nothing of a failed call is kept.
  absl::StatusOr<SlabView> Map(const PeerSlab& slab,
                               std::chrono::steady_clock::time_point deadline) override;
  void Forget(uint32_t rank, const std::string& incarnation) override;
  void KeepOnly(uint32_t rank, const std::vector<uint64_t>& segment_ids) override;

  // Bytes of address space that mappings of `rank` take.
  uint64_t MappedBytes(uint32_t rank) const;

 private:
  using Mappings = std::map<uint64_t, Mapping>;  // by segment id, whole segments
  struct Peer {
    std::string incarnation;
    Mappings mappings;
  };

  absl::StatusOr<Mappings> MapMissing(const PeerSlab& slab, const Peer& peer,
                                      std::chrono::steady_clock::time_point deadline);

  const std::string host_;
  Mutex mutex_;
  std::string secret_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, Peer> peers_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_HOST_HOST_PEER_MEMORY_H_
