// The pool of host memory segments: those in slabs, free ones, and those that clients still hold.
// Faulted memory is several times as fast to fill as fresh memory, so it is kept, within the
// budget, rather than freed.
//
// A segment that a slab gives back is used again only when no client can still see it
// (HostSegment::HeldByOthers). Until then it *lingers*: it counts in the budget, and is checked
// again whenever memory is wanted or usage is shown. It is released when the budget is needed.
// The memory itself is freed when the last client unmaps it.
//
// The background fill gives way to others:
// - Loads of this daemon help to make its current segment if they need it, and cancel it if they
//   do not.
// - It leaves a reserve for other processes.
// - Memory that clients got for good (Forget) counts as filled, up to the target, until loads
//   have made as much anew. The client needs its memory, and nobody has asked for more.
//
// An arena whose size nobody has set (AutoArena) follows what is loaded. It frees memory that no
// slab has when nothing was loaded for a while, and when the system runs short.
#ifndef CKPTD_SERVER_MEMORY_HOST_ARENA_H_
#define CKPTD_SERVER_MEMORY_HOST_ARENA_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "server/memory/host/memory_claims.h"
#include "server/memory/host/segment.h"
#include "server/memory/memory.h"

namespace ckptd {

struct AutoArena {
  // Free memory is given back to the system after this time without a load. 0: never.
  std::chrono::nanoseconds idle = std::chrono::minutes(5);
  // Below this many available bytes in the system, free memory is given back until the fill's
  // reserve is available again. None: half of that reserve.
  std::optional<uint64_t> pressure_bytes = {};
  // How often time and available memory are checked.
  std::chrono::nanoseconds poll_interval = std::chrono::seconds(1);
  // Gets the bytes of the largest slab so far, each time that it grows. The fill thread calls it
  // without a lock.
  std::function<void(uint64_t)> remember = nullptr;
};

struct HostMemoryOptions {
  // Slabs, free memory and lingering memory together never exceed this.
  uint64_t budget_bytes = 0;
  // Filled in the background from the start, within the budget. 0: the arena grows with the first
  // loads.
  uint64_t arena_target_bytes = 0;
  // The reason for this size, for people.
  std::string arena_why = {};
  std::optional<AutoArena> automatic = {};
  // A multiple of kHugePageBytes.
  uint64_t segment_bytes = uint64_t{256} << 20;
  bool huge_pages = true;                  // if the kernel has them
  std::optional<unsigned> numa_node = {};  // preferred node of the memory
  unsigned populate_threads = 0;  // threads that fault memory in; 0: one per core, at most 8
  // False: memory that was handed out is never used again, as on a kernel whose ownership check
  // does not work.
  bool ownership_check = true;
  // Whether other daemons map slabs to fill them. A stopped daemon continues to write when it is
  // resumed, however long ago its load ended. So memory of a load that did not complete is never
  // used again.
  bool filled_by_peers = false;
  // Available bytes that the background fill leaves to others. None: a tenth of TotalMemory.
  std::optional<uint64_t> fill_reserve_bytes = {};
  // Available bytes that an allocation leaves for the other needs of a load: page tables of all
  // processes that map it, buffers, threads. None: 16 MiB and 1/256 of the fresh memory (page
  // tables take 1/512 for each process).
  std::optional<uint64_t> load_reserve_bytes = {};
  // Bytes that the system still has: AvailableMemory, unless a test sets another function.
  std::function<absl::StatusOr<uint64_t>()> available_memory = nullptr;
  // The same, for the machine and each control group: MemoryLevels. None: available_memory alone.
  MemoryClaims::Levels memory_levels = nullptr;
  // The file in which this host's daemons claim memory, see MemoryClaims. Empty: they do not.
  std::string claims_path = {};
  std::string claims_holder = {};  // see MemoryClaims
  // Daemons of this host, with this one. A load is shared by them, so each may need as much.
  uint64_t local_daemons = 1;
  // A memory-backed folder, in which segments are files. Empty: they are memfds.
  std::string folder = {};
  // Gets one sentence about each background failure, and about memory that an AutoArena gave
  // back. The fill thread calls it without a lock.
  std::function<void(std::string)> note = nullptr;
};

// One segment of a slab or of the pool, and what the pool must know about it.
struct ArenaPiece {
  std::unique_ptr<HostSegment> segment;
  uint64_t bytes = 0;        // the slab's part, from the start
  uint64_t dirty_bytes = 0;  // the rest of the segment holds zeros
  // see OnWriterRestart: only this writer may have mapped it before a seal
  uint64_t writer_generation = 0;
  static constexpr uint64_t kNoWriter = UINT64_MAX;  // nobody can write it any more, if it is sealed
  bool filling = false;        // in a slab whose load has not completed
  bool lent = false;           // descriptors went out since the last check
  bool lent_writable = false;  // read-write ones, too: content and seals are the client's
};

// Thread-safe. HostMemory and its slabs share it, so it outlives the slabs.
class Arena {
 public:
  // `options` must be valid, with available_memory set. Starts no thread; StartFilling does.
  explicit Arena(HostMemoryOptions options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  absl::Status StartFilling();
  // Joins the fill thread; idempotent. No fill happens afterwards.
  void StopFilling();
  // Waits until nothing is left to fill (true), or filling has failed or `deadline` has passed
  // (false).
  bool WaitUntilFilled(std::chrono::steady_clock::time_point deadline);

  // Segments for a slab of `bytes` > 0, back to back. With `unsealed_only`, none was ever sealed.
  // Waits for the segment that the fill is making, and for other daemons that are faulting in
  // claimed memory, up to half a minute each. Errors: ResourceExhausted NO_MEMORY,
  // DeadlineExceeded DEADLINE (see MemoryClaims). After an error nothing is changed.
  absl::StatusOr<std::vector<ArenaPiece>> Take(uint64_t bytes, bool unsealed_only);
  // Segments of a slab that an earlier process filled. Errors: those of HostSegment::Adopt, and
  // NO_MEMORY, DIGEST_MISMATCH if descriptors are missing.
  absl::StatusOr<std::vector<ArenaPiece>> Adopt(KeptSlab kept);
  // Gives segments back: to the pool, to the lingering ones, or to the system.
  void Return(std::vector<ArenaPiece> pieces);
  // Gives segments up for good. Clients may hold them.
  void Forget(std::vector<ArenaPiece> pieces);

  // A slab of `bytes` is complete. An AutoArena aims for the size of the largest one.
  void NoteFilled(uint64_t bytes);
  // See ReadyMemory.
  void Expect(uint64_t bytes, const std::string& why);
  uint64_t Trim();
  std::string Why();
  // See MemoryBackend.
  void OnWriterRestart();
  bool ownership_check_works() const { return ownership_check_works_; }
  const HostMemoryOptions& options() const { return options_; }

  std::vector<uint64_t> Ids();
  MemoryUsage Usage();
  // A duplicate of the original descriptor. NotFound if the arena does not own the segment.
  absl::StatusOr<UniqueFd> DuplicateOriginal(uint64_t id);

 private:
  using Pieces = std::vector<ArenaPiece>;
  // Pieces of a slab. Only those that were in the pool have a segment.
  struct Draft {
    Pieces pieces;
    std::vector<uint64_t> capacity;  // bytes of each piece that must be made, else 0
    uint64_t fresh = 0;              // their sum
  };
  enum class Disposition { kFree, kLinger, kDrop };

  // These need mutex_. Segments in `to_release` must be destroyed after unlocking, because
  // unmapping takes long.
  Draft Pick(uint64_t bytes, bool unsealed_only) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PickOne(ArenaPiece& piece, bool unsealed_only) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutBack(Draft& draft) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Draft PickAfterFill(uint64_t bytes, bool unsealed_only) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeRoom(uint64_t asked, const Draft& draft, Pieces& to_release)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReapLingering(Pieces& to_release) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Disposition DispositionOf(const ArenaPiece& piece) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dispose(ArenaPiece piece, Pieces& to_release) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkForRelease(ArenaPiece piece, Pieces& to_release) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TrimFree(uint64_t bytes, Pieces& to_release) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t Held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t NextFill() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void YieldFill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetTarget(uint64_t bytes, std::string why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t GiveBack(uint64_t bytes, const std::string& why, Pieces& to_release)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // These must be called without mutex_.
  absl::StatusOr<Draft> Reserve(uint64_t bytes, bool unsealed_only);
  // Makes the fresh part of `draft`. If that fails, its pieces go back.
  absl::Status TakeFresh(uint64_t asked, Draft& draft);
  absl::StatusOr<MemoryClaim> ClaimFresh(uint64_t asked, uint64_t fresh);
  uint64_t LoadReserve(uint64_t fresh) const;
  absl::Status MakeFresh(Draft& draft, MemoryClaim claim);
  absl::Status NoneLeft(uint64_t asked, uint64_t reserve, const MemoryClaims::Answer& answer) const;
  void CancelTake(Draft draft);
  // `on_start` as in PopulateOptions.
  absl::StatusOr<std::unique_ptr<HostSegment>> MakeSegment(
      uint64_t bytes, unsigned threads,
      std::function<void(std::shared_ptr<PopulateWork>)> on_start);
  absl::Status NoMemory(uint64_t asked, uint64_t free, const std::string& why) const;
  void FillLoop();
  void AwaitWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillOnce(uint64_t bytes);
  absl::StatusOr<std::unique_ptr<HostSegment>> MakeFilling(uint64_t bytes);
  // Further work of an AutoArena's fill thread.
  void GiveBackUnneeded();
  void Remember();
  void Note(const std::string& line) const;

  const HostMemoryOptions options_;
  const MemoryClaims claims_;
  const bool ownership_check_works_;

  mutable Mutex mutex_;
  CondVar changed_;
  Pieces free_ ABSL_GUARDED_BY(mutex_);  // oldest first
  Pieces lingering_ ABSL_GUARDED_BY(mutex_);
  // All segments of the arena and of slabs, by id.
  std::map<uint64_t, const HostSegment*> owned_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t writer_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t used_ ABSL_GUARDED_BY(mutex_) = 0;         // bytes of segments in slabs
  uint64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;      // bytes being made for slabs
  uint64_t filling_ ABSL_GUARDED_BY(mutex_) = 0;      // bytes being made for the pool
  uint64_t transferred_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of Forget that count as filled
  uint64_t target_ ABSL_GUARDED_BY(mutex_) = 0;       // size that the fill aims for
  std::string target_why_ ABSL_GUARDED_BY(mutex_);
  uint64_t largest_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of the largest complete slab
  std::chrono::steady_clock::time_point last_use_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<PopulateWork> filling_work_ ABSL_GUARDED_BY(mutex_);
  unsigned waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // loads that wait for the fill's current segment
  unsigned loading_ ABSL_GUARDED_BY(mutex_) = 0;  // slabs that are not complete yet
  bool fill_stalled_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t remembered_ = 0;  // used by the fill thread only
  std::thread filler_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_ARENA_H_
