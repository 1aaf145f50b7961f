#include "server/transfer/transfer.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/block_reader.h"
#include "server/transfer/digest_board.h"
#include "server/transfer/item_worker.h"
#include "server/transfer/sigbus_guard.h"
#include "server/transfer/slab_map.h"
#include "server/transfer/transfer_parts.h"

namespace ckptd {
namespace {

// With one read buffer each this caps staging memory at 16 MiB; direct reads take as
// much again. More in flight slows disks down.
constexpr unsigned kMaxThreads = (16 << 20) / kReadBlockBytes;
constexpr unsigned kMaxDirectReads = (16 << 20) / kItemBytes;
// More than these only fight over memory bandwidth.
constexpr unsigned kMaxDefaultThreads = 32;

// Cores this process may use, which containers cut down; at least two, so that
// one thread's wait for storage is another's time to copy.
unsigned DefaultThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof set, &set) == 0;
  const unsigned cores =
      known ? static_cast<unsigned>(CPU_COUNT(&set)) : std::thread::hardware_concurrency();
  return std::clamp(cores, 2U, kMaxDefaultThreads);
}

// Of thread number `thread`: an equal part of all; with more threads than that, one
// for each of the first, and the others read through their buffer.
size_t DirectReadsOf(unsigned thread, unsigned threads) {
  if (threads <= kMaxDirectReads) return kMaxDirectReads / threads;
  return thread < kMaxDirectReads ? 1 : 0;
}

// One running transfer, shared by its threads.
class Job {
 public:
  Job(const CheckpointIndex& index, const TransferOptions& options, TransferProgress& progress,
      const TransferParts& parts)
      : parts_(parts),
        options_(options),
        progress_(progress),
        slabs_(MakeSlabs(parts.here)),
        files_(index, parts.items, options.way),
        board_(options.digests ? std::make_unique<DigestBoard>(parts.here, slabs_) : nullptr),
        totals_(parts.targets.size(), 0) {}

  absl::Status Run() {
    const unsigned wanted = options_.threads == 0 ? DefaultThreads() : options_.threads;
    const auto useful =
        static_cast<unsigned>(std::min<size_t>(parts_.items.size(), kMaxThreads));
    const unsigned count = std::clamp(wanted, 1U, std::max(useful, 1U));
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < count; ++i) {
      try {
        threads.emplace_back([this, i, count] { Work(DirectReadsOf(i, count)); });
      } catch (const std::system_error& error) {
        if (!threads.empty()) break;  // fewer will do
        return MakeError(
            absl::StatusCode::kResourceExhausted, reason::kNoMemory,
            fmt::format("starting a reader thread: {}; raise the limit of threads", error.what()));
      }
    }
    for (std::thread& thread : threads) thread.join();
    {
      MutexLock lock(mutex_);
      CKPTD_RETURN_IF_ERROR(error_);
    }
    for (const RemoteTarget& remote : parts_.remotes) {
      CKPTD_RETURN_IF_ERROR(parts_.targets[remote.target].sink->Finish());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TransferResult> Result() {
    TransferResult result;
    MutexLock lock(mutex_);
    result.storage_bytes = storage_bytes_;
    result.done = totals_;
    if (options_.parts == 1) CKPTD_RETURN_IF_ERROR(CheckTotals());
    if (board_ == nullptr) return result;
    CKPTD_ASSIGN_OR_RETURN(auto digests, board_->Combine());
    result.digests.resize(totals_.size());
    for (size_t i = 0; i < digests.size(); ++i) {
      result.digests[parts_.here_at[i]] = std::move(digests[i]);
    }
    return result;
  }

 private:
  static std::vector<SlabMap> MakeSlabs(const std::vector<TransferTarget>& targets) {
    std::vector<SlabMap> slabs;
    for (const TransferTarget& target : targets) slabs.emplace_back(target.slab);
    return slabs;
  }

  absl::Status CheckTotals() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (size_t t = 0; t < totals_.size(); ++t) {
      const RankPlan& plan = *parts_.targets[t].plan;
      if (totals_[t] == plan.tensor_bytes) continue;
      return MakeError(
          absl::StatusCode::kInternal, reason::kCoverage,
          fmt::format("placing the shard of rank {}: {} bytes were written, its tensors "
                      "have {}; this is a defect of the planner, report it with the "
                      "layout",
                      plan.rank, totals_[t], plan.tensor_bytes),
          {{"rank", std::to_string(plan.rank)}});
    }
    return absl::OkStatus();
  }

  void Work(size_t direct_reads) {
    UnblockSigbus();
    absl::StatusOr<SlabWriter> slabs = SlabWriter::Open(slabs_);
    absl::Status status = slabs.status();
    if (status.ok()) status = Work(*slabs, direct_reads);
    if (status.ok()) status = slabs->Finish();
    if (!status.ok()) Stop(std::move(status));
  }

  absl::Status Work(SlabWriter& slabs, size_t direct_reads) {
    ItemWorker worker(parts_, slabs, board_.get(), files_, direct_reads);
    std::vector<uint64_t> done(parts_.targets.size());
    std::deque<const WorkItem*> claimed;
    while (!stop_.load(std::memory_order_relaxed)) {
      Claim(worker, direct_reads, claimed);
      if (claimed.empty()) break;
      const WorkItem& item = *claimed.front();
      claimed.pop_front();
      std::fill(done.begin(), done.end(), 0);
      CKPTD_RETURN_IF_ERROR(Poll());
      CKPTD_RETURN_IF_ERROR(worker.Do(item, done, [this] { return Poll(); }));
      Count(worker, done);
    }
    return absl::OkStatus();
  }

  // The next item, and as many more as are read ahead.
  void Claim(ItemWorker& worker, size_t direct_reads, std::deque<const WorkItem*>& claimed) {
    while (claimed.size() <= direct_reads) {
      const size_t next = next_item_.fetch_add(1, std::memory_order_relaxed);
      if (next >= parts_.items.size()) return;
      claimed.push_back(&parts_.items[next]);
      if (!worker.Ahead(*claimed.back())) return;
    }
  }

  // One thread at a time: callers need not make `interrupted` thread-safe.
  absl::Status Poll() {
    // Never seen by the caller: the error that stopped us came first.
    if (stop_.load(std::memory_order_relaxed)) return absl::CancelledError("stopped");
    if (!options_.interrupted) return absl::OkStatus();
    MutexLock lock(poll_mutex_);
    return options_.interrupted();
  }

  void Stop(absl::Status status) {
    MutexLock lock(mutex_);
    if (error_.ok()) error_ = std::move(status);
    // Last, so that whoever stops because of it finds the true error in place.
    stop_.store(true, std::memory_order_relaxed);
  }

  void Count(const ItemWorker& worker, std::span<const uint64_t> done) {
    const uint64_t storage_bytes = worker.needed_bytes();
    progress_.storage_bytes.fetch_add(storage_bytes, std::memory_order_relaxed);
    if (worker.way() == ReadWay::kMap) progress_.mapped_bytes += storage_bytes;
    if (worker.way() == ReadWay::kDirect) progress_.direct_bytes += storage_bytes;
    for (size_t t = 0; t < done.size(); ++t) {
      if (done[t] != 0) progress_.done[t].fetch_add(done[t], std::memory_order_relaxed);
    }
    MutexLock lock(mutex_);
    storage_bytes_ += storage_bytes;
    for (size_t t = 0; t < done.size(); ++t) totals_[t] += done[t];
  }

  const TransferParts& parts_;
  const TransferOptions& options_;
  TransferProgress& progress_;
  const std::vector<SlabMap> slabs_;
  SourceFiles files_;
  const std::unique_ptr<DigestBoard> board_;
  std::atomic<size_t> next_item_ = 0;
  std::atomic<bool> stop_ = false;
  Mutex poll_mutex_;
  Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  uint64_t storage_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> totals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<TransferResult> RunTransfer(const CheckpointIndex& index,
                                           std::span<const TransferTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress) {
  const bool digests_fit = !options.digests || options.parts == 1;
  if (progress.done.size() < targets.size() || options.part >= options.parts || !digests_fit) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("starting part {} of {} of a transfer: progress has room for {} "
                                 "of {} targets, digests are {}",
                                 options.part, options.parts, progress.done.size(), targets.size(),
                                 options.digests ? "on" : "off"));
  }
  TransferParts parts;
  CKPTD_RETURN_IF_ERROR(BuildParts(index, targets, options, parts));
  Job job(index, options, progress, parts);
  CKPTD_RETURN_IF_ERROR(job.Run());
  return job.Result();
}

}  // namespace ckptd
