// The pool of host memory segments: what is in slabs, what waits to be used
// again, and what clients still hold. Faulted memory is several times as fast to
// fill as fresh memory, so it is kept, within the budget, rather than freed.
//
// A segment that a slab gives back is used again only when nobody but us can
// still see it (HostSegment::HeldByOthers). Until then it *lingers*: it counts
// in the budget, is asked again whenever memory is wanted or usage is shown, and
// is let go when the budget is needed for something else (the memory itself then
// goes when the last client lets go of it).
//
// The background fill gives way: to loads of this daemon, which help to make the segment it is
// at if they need it, and end it if they do not; to other processes, for which it leaves a
// reserve; and to clients that were given memory for good (Forget): that counts as filled, up to the target, until
// loads have made as much anew themselves. They need it beside what they were given, and
// nobody asked for more.
//
// An arena whose size nobody has set (AutoArena) follows what is loaded, and gives memory that
// no slab has back: when nothing was loaded for a while, and when the system runs short.
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
  // Without a load until free memory goes back to the system; 0: never.
  std::chrono::nanoseconds idle = std::chrono::minutes(5);
  // Bytes that the system has: below, free memory goes back until the fill's reserve is there
  // again. None: half of that reserve.
  std::optional<uint64_t> pressure_bytes = {};
  // Between two looks at the clock and at the system.
  std::chrono::nanoseconds look_interval = std::chrono::seconds(1);
  // Told the bytes of the largest slab that was filled so far, each time that grows. Called by
  // the fill thread with no lock held.
  std::function<void(uint64_t)> remember = nullptr;
};

struct HostMemoryOptions {
  // Slabs, free memory and lingering memory together never pass this.
  uint64_t budget_bytes = 0;
  // Filled in the background from the start, within the budget; 0: the arena
  // grows with the first loads.
  uint64_t arena_target_bytes = 0;
  // Why that much, for people.
  std::string arena_why = {};
  std::optional<AutoArena> automatic = {};
  // A multiple of kHugePageBytes.
  uint64_t segment_bytes = uint64_t{256} << 20;
  bool huge_pages = true;                  // where the kernel gives them
  std::optional<unsigned> numa_node = {};  // that memory comes from while it has any
  unsigned populate_threads = 0;           // that fault memory in; 0: the cores, at most 8
  // False: as on a kernel whose ownership check does not work, memory that was
  // handed out is never used again.
  bool ownership_check = true;
  // Whether other daemons map slabs to fill them. One that was stopped in the middle writes
  // on when it goes on, however long ago its load was given up: that memory is never used
  // again.
  bool filled_by_peers = false;
  // Bytes that the background fill leaves to others; none: a tenth of TotalMemory.
  std::optional<uint64_t> fill_reserve_bytes = {};
  // Bytes that a slab leaves for what loading takes besides: page tables of all who map it,
  // buffers, threads. None: 16 MiB and a 256th of what is made anew (page tables take a 512th
  // for each who maps it).
  std::optional<uint64_t> load_reserve_bytes = {};
  // What the system still has; AvailableMemory unless a test says otherwise.
  std::function<absl::StatusOr<uint64_t>()> available_memory = nullptr;
  // Where the daemons of this host claim what they fault in, see MemoryClaims; empty: each
  // takes what it finds.
  std::string claims_path = {};
  // Told, in a sentence, what went wrong in the background, and what memory of an AutoArena
  // went back. Called by the fill thread with no lock held.
  std::function<void(std::string)> note = nullptr;
};

// One segment in the hands of a slab, with what the pool must know about it.
struct ArenaPiece {
  std::unique_ptr<HostSegment> segment;
  uint64_t bytes = 0;          // the slab's part, from the start
  uint64_t dirty_bytes = 0;    // beyond this the segment holds zeros
  uint64_t taken_for = 0;      // the reader (NewReader) that could map it before a seal
  bool filling = false;        // taken, and whoever fills it has not ended
  bool lent = false;           // descriptors went out since it was last checked
  bool lent_writable = false;  // ... read-write ones: its content and seals are the client's
};

// Thread-safe. Outlives the slabs made from it: they share its ownership.
class Arena {
 public:
  // `options` are valid, with available_memory set. No thread runs before
  // StartFilling.
  explicit Arena(HostMemoryOptions options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  absl::Status StartFilling();
  // Joins the fill thread; idempotent. No fill happens afterwards.
  void StopFilling();
  // Waits until nothing is left to be filled (true), or cannot be now (false), or
  // the deadline has passed (false).
  bool WaitUntilFilled(std::chrono::steady_clock::time_point deadline);

  // Segments for a slab of `bytes` > 0, back to back. With `unsealed_only`,
  // none that was ever sealed. Waits, each at most half a minute, for the segment
  // that the fill is making, and where there would be enough but for what other
  // daemons are faulting in, until that is clear. ResourceExhausted NO_MEMORY and
  // DeadlineExceeded DEADLINE (see MemoryClaims) leave all as it was.
  absl::StatusOr<std::vector<ArenaPiece>> Take(uint64_t bytes, bool unsealed_only);
  // Gives them back: to the pool, to the lingering ones, or to the system.
  void Return(std::vector<ArenaPiece> pieces);
  // Lets go of them for good; clients may hold them.
  void Forget(std::vector<ArenaPiece> pieces);

  // A slab of `bytes` is complete: an AutoArena is to be as large as the largest.
  void NoteFilled(uint64_t bytes);
  // See ReadyMemory.
  void Expect(uint64_t bytes, const std::string& why);
  uint64_t Trim();
  std::string Why();
  // See MemoryBackend.
  void NewReader();
  bool ownership_check_works() const { return ownership_check_works_; }
  const HostMemoryOptions& options() const { return options_; }

  std::vector<uint64_t> Ids();
  MemoryUsage Usage();
  // A duplicate of the original descriptor. NotFound when we do not own it.
  absl::StatusOr<UniqueFd> DuplicateOriginal(uint64_t id);

 private:
  using Pieces = std::vector<ArenaPiece>;
  // Pieces of which only those the pool had are filled in.
  struct Draft {
    Pieces pieces;
    std::vector<uint64_t> capacity;  // of each piece that must be made, else 0
    uint64_t fresh = 0;              // their sum
  };
  enum class Fate { kFree, kLinger, kDrop };

  // All of these with mutex_ held; what they put in `doomed` is destroyed by the
  // caller after unlocking, because unmapping takes long.
  Draft Pick(uint64_t bytes, bool unsealed_only) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PickOne(ArenaPiece& piece, bool unsealed_only) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutBack(Draft& draft) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Draft PickAfterFill(uint64_t bytes, bool unsealed_only) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeRoom(uint64_t asked, const Draft& draft, Pieces& doomed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Recheck(Pieces& doomed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Fate FateOf(const ArenaPiece& piece) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle(ArenaPiece piece, Pieces& doomed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Doom(ArenaPiece piece, Pieces& doomed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TrimFree(uint64_t bytes, Pieces& doomed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t Held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t NextFill() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void YieldFill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Aim(uint64_t bytes, std::string why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t GiveBack(uint64_t bytes, const std::string& why, Pieces& doomed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Without it.
  absl::StatusOr<Draft> Reserve(uint64_t bytes, bool unsealed_only);
  // Makes the fresh part of `draft`, whose pieces go back if that fails.
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
  // What an AutoArena's fill thread does besides.
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
  // Everything above and in slabs, by id.
  std::map<uint64_t, const HostSegment*> owned_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t reader_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t used_ ABSL_GUARDED_BY(mutex_) = 0;      // bytes of segments in slabs
  uint64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;   // bytes being made for slabs
  uint64_t filling_ ABSL_GUARDED_BY(mutex_) = 0;   // bytes being made for the pool
  uint64_t given_up_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes that count as filled
  uint64_t target_ ABSL_GUARDED_BY(mutex_) = 0;    // what the fill aims for
  std::string target_why_ ABSL_GUARDED_BY(mutex_);
  uint64_t largest_ ABSL_GUARDED_BY(mutex_) = 0;  // slab that was filled, bytes
  std::chrono::steady_clock::time_point last_use_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<PopulateWork> filling_work_ ABSL_GUARDED_BY(mutex_);
  unsigned waiting_ ABSL_GUARDED_BY(mutex_) = 0;   // loads, for what is being filled
  unsigned loading_ ABSL_GUARDED_BY(mutex_) = 0;   // slabs that are not complete yet
  bool fill_stalled_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t remembered_ = 0;  // the fill thread's own
  std::thread filler_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_ARENA_H_
