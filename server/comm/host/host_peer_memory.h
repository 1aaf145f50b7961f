// PeerMemory on one host. Maps the memfd segments of the other daemons and keeps the mappings, so
// that later loads need no new page tables. Slabs in device memory are imported anew for each
// load.
#ifndef CKPTD_SERVER_COMM_HOST_HOST_PEER_MEMORY_H_
#define CKPTD_SERVER_COMM_HOST_HOST_PEER_MEMORY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "server/comm/peer_memory.h"

namespace ckptd {

// The daemon owns it. Not thread-safe, except SetSecret.
class HostPeerMemory final : public PeerMemory {
 public:
  // Makes the device memory behind a peer's descriptor writable here. Errors: FailedPrecondition
  // if this process cannot reach that device.
  using ImportDevice = std::function<absl::StatusOr<std::shared_ptr<StagedMemory>>(
      const std::string& device_uuid, const UniqueFd& fd, uint64_t bytes)>;

  // `host`: identity of this host, as in PeerSlab::host. Without `import`, device memory cannot
  // be reached.
  explicit HostPeerMemory(std::string host, ImportDevice import = nullptr)
      : host_(std::move(host)), import_(std::move(import)) {}

  // Sets the group's secret; see PeerSocket::SetSecret. Thread-safe.
  void SetSecret(std::string secret);

  // Segments that are already mapped for the same incarnation of that daemon cost nothing.
  // Further errors besides PeerMemory's: FailedPrecondition RANK_FAILED if a segment was sealed
  // before we could map it (that daemon must replace its memory: SlabAllocator::OnWriterRestart),
  // InvalidArgument for an impossible description. All name the rank. A failed call keeps no
  // mapping of its own.
  absl::StatusOr<SlabView> Map(const PeerSlab& slab,
                               std::chrono::steady_clock::time_point deadline) override;
  void Forget(uint32_t rank, const std::string& incarnation) override;
  uint64_t KeepOnly(uint32_t rank, const std::vector<uint64_t>& segment_ids) override;
  // Drops mappings of segments that their daemons no longer own, because memory that they gave
  // back to the system is not free while it is mapped here. A daemon that does not answer by the
  // deadline is skipped.
  void DropReleased(std::chrono::steady_clock::time_point deadline);

  // Bytes of address space of all mappings of `rank`.
  uint64_t MappedBytes(uint32_t rank) const;

 private:
  struct Mapped {
    std::shared_ptr<const Mapping> mapping;  // of the whole segment; views that are used hold it
    uint64_t populated = 0;                  // bytes from its start
  };
  using Mappings = std::map<uint64_t, Mapped>;  // by segment id
  struct Peer {
    std::string incarnation;
    std::string endpoint;
    Mappings mappings;
  };

  absl::StatusOr<SlabView> MapHost(const PeerSlab& slab,
                                   std::chrono::steady_clock::time_point deadline);
  absl::StatusOr<SlabView> MapDevice(const PeerSlab& slab,
                                     std::chrono::steady_clock::time_point deadline);
  std::string Secret();
  absl::StatusOr<Mappings> MapMissing(const PeerSlab& slab, const Peer& peer,
                                      std::chrono::steady_clock::time_point deadline);

  const std::string host_;
  const ImportDevice import_;
  Mutex mutex_;
  std::string secret_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, Peer> peers_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_HOST_HOST_PEER_MEMORY_H_
