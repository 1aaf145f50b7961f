// The arguments and results of a transfer.
#ifndef CKPTD_SERVER_TRANSFER_TRANSFER_TYPES_H_
#define CKPTD_SERVER_TRANSFER_TRANSFER_TYPES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/group_plan.h"
#include "common/plan/plan.h"
#include "common/plan/scatter_order.h"
#include "common/source/access.h"
#include "server/memory/slab_view.h"
#include "server/transfer/file_times.h"
#include "server/transfer/frames.h"
#include "server/transfer/io_mode.h"

namespace ckptd {

// One rank that takes part in a transfer.
struct TransferTarget {
  const RankPlan* plan = nullptr;  // null if a group's plan has it
  SlabView slab;                   // must live for the whole transfer
  // Set if the memory is not here. The bytes that the rank needs are then sent, and the other
  // side casts, places and hashes them. Must outlive the transfer.
  TransferSink* sink = nullptr;
};

struct TransferOptions {
  // This process does part number `part` of `parts` of the work in file order. Other readers,
  // with the same targets, do the other parts.
  uint32_t part = 0;
  uint32_t parts = 1;
  // 0: one per core of this process, as far as staging memory suffices; at most 64
  unsigned threads = 0;
  bool digests = true;    // only with parts == 1, because blocks may straddle parts
  // A group's plan is scheduled in windows of about this many copies. Each copy takes about 0.6
  // KB, and two or three windows exist at a time.
  uint64_t window_copies = uint64_t{1} << 17;
  // Reading through a mapping installs a SIGBUS handler in the process, so that a file that is
  // cut meanwhile causes an error and no crash.
  IoMode io_mode = IoMode::kAuto;
  SourceAccess access = {};
  // Polled before each block of about 1 MiB, by reader threads but never by two at once. A non-OK
  // status stops the transfer with it.
  std::function<absl::Status()> interrupted;
};

// Needed bytes that were read from storage, each counted once. Short gaps that are read as well are
// not counted.
struct ReadCounters {
  uint64_t storage_bytes = 0;  // all of them
  uint64_t mapped_bytes = 0;   // through a mapping of the page cache
  uint64_t direct_bytes = 0;   // past the page cache

  ReadCounters& operator+=(const ReadCounters& other) {
    storage_bytes += other.storage_bytes;
    mapped_bytes += other.mapped_bytes;
    direct_bytes += other.direct_bytes;
    return *this;
  }
};

// May be read from any thread while the transfer runs.
struct TransferProgress {
  explicit TransferProgress(size_t targets) : done(targets) {}
  ReadCounters read() const { return {storage_bytes, mapped_bytes, direct_bytes}; }
  std::atomic<uint64_t> storage_bytes = 0;  // as in ReadCounters
  std::atomic<uint64_t> mapped_bytes = 0;
  std::atomic<uint64_t> direct_bytes = 0;
  // finished exchanges of a communicator that carries the bytes
  std::atomic<uint64_t> exchanges = 0;
  // before an exchange: the other ranks may have to wait for this one
  std::atomic<bool> busy = false;
  std::atomic<bool> joining = false;  // joins such a communicator, together with the other ranks
  std::vector<std::atomic<uint64_t>> done;  // target bytes placed or sent, per target
  FileTimes files;
};

struct TransferResult {
  uint64_t storage_bytes = 0;
  std::vector<uint64_t> done;  // as TransferProgress::done
  // Per target and PlannedTensor, in plan order. Empty if digests are off, and for a target that
  // has a sink.
  std::vector<std::vector<uint64_t>> digests;
};

// The steps of a ScatterOrder that this process reads.
struct StepList {
  const ScatterOrder* order = nullptr;
  std::vector<size_t> steps;  // numbers in the order, ascending
};

// A rank of a group that these steps fill.
struct StepTarget {
  const PlannedRank* rank = nullptr;
  // Its slab, or several pieces of memory that are used in turn: step number i fills number i
  // modulo their count. Memory that only passes a step's bytes on is used again this way.
  std::vector<SlabView> views;
  // Indexes into TransferProgress::done for its bytes: one for each rank that gets them from
  // here, its own first.
  std::vector<size_t> counters;
  // Selects the copies that are made here. Null: all. The other copies reach the rank in another
  // way and count for it there.
  std::function<bool(const CopyOp&)> only = {};
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_TRANSFER_TYPES_H_
