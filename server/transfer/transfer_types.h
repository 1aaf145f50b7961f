// What a transfer is given, and what it tells.
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
#include "server/memory/slab_view.h"
#include "server/transfer/frames.h"
#include "server/transfer/io_mode.h"

namespace ckptd {

// One rank that takes part in a transfer.
struct TransferTarget {
  const RankPlan* plan = nullptr;  // null where a group's plan says it
  SlabView slab;                   // alive for the whole transfer
  // Set when the memory is not here: what the rank needs is sent, and cast, placed
  // and hashed over there. Outlives the transfer.
  TransferSink* sink = nullptr;
};

struct TransferOptions {
  // Of the work in file order, this process does part number `part` of `parts`;
  // other readers, with the same targets, do the others.
  uint32_t part = 0;
  uint32_t parts = 1;
  unsigned threads = 0;  // 0: as many as this process has cores, and staging memory for; at most 64
  bool digests = true;    // only with parts == 1: blocks may straddle parts
  // A group's plan is scheduled in windows of about so many copies: some 0.6 KB each,
  // of two or three windows at a time.
  uint64_t window_copies = uint64_t{1} << 17;
  // Reading through a mapping installs a SIGBUS handler for the process: a file that
  // is cut meanwhile is an error all the same.
  IoMode way = IoMode::kAuto;
  // Polled before each block of about 1 MiB, from reader threads but never from
  // two at once; a non-OK status stops the transfer with it.
  std::function<absl::Status()> interrupted;
};

// Read while the transfer runs, from any thread.
struct TransferProgress {
  explicit TransferProgress(size_t targets) : done(targets) {}
  // Needed bytes read from files, each once. Gaps of less than a page that are
  // read along are not counted.
  std::atomic<uint64_t> storage_bytes = 0;
  std::atomic<uint64_t> mapped_bytes = 0;  // of these, read through a mapping
  std::atomic<uint64_t> direct_bytes = 0;  // and past the page cache
  std::atomic<uint64_t> exchanges = 0;     // of a communicator that takes the bytes on, done
  std::atomic<bool> busy = false;          // before one: others may have to wait for this rank
  std::atomic<bool> joining = false;       // such a communicator, together with the others
  std::vector<std::atomic<uint64_t>> done;  // target bytes placed or sent, per target
};

struct TransferResult {
  uint64_t storage_bytes = 0;
  std::vector<uint64_t> done;  // as TransferProgress::done
  // Per target, per PlannedTensor, in plan order; empty when digests are off, and
  // for a target that has a sink.
  std::vector<std::vector<uint64_t>> digests;
};

// The steps of a ScatterOrder that this process reads.
struct StepList {
  const ScatterOrder* order = nullptr;
  std::vector<size_t> steps;  // numbers in it, ascending
};

// A rank of a group as those steps fill it.
struct StepTarget {
  const PlannedRank* rank = nullptr;
  // Its slab; or several, of which step number i fills number i modulo their count: memory
  // that only passes a step's bytes on is used again.
  std::vector<SlabView> views;
  // Where TransferProgress counts its bytes: once for each rank that gets them from here,
  // its own first.
  std::vector<size_t> counters;
  // Of its copies those that are made here; null: all. The others count for it elsewhere.
  std::function<bool(const CopyOp&)> only = {};
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_TRANSFER_TYPES_H_
