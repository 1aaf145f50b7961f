#include "server/transfer/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/block_reader.h"
#include "server/transfer/digest_board.h"
#include "server/transfer/item_worker.h"
#include "server/transfer/sigbus_guard.h"
#include "server/transfer/slab_map.h"
#include "common/base/at_once.h"
#include "server/transfer/threads.h"
#include "server/transfer/window.h"
#include "server/transfer/window_queue.h"

namespace ckptd {
namespace {

// With one read buffer per thread, this caps staging memory at 16 MiB. Direct reads take as much
// again. More reads in flight slow disks down.
constexpr unsigned kMaxThreads = (16 << 20) / kReadBlockBytes;
constexpr unsigned kMaxDirectReads = (16 << 20) / kItemBytes;

// The direct reads of thread number `thread`. All threads get an equal part. If there are too
// many threads, each of the first gets one, and the others read through their buffer.
size_t DirectReadsOf(unsigned thread, unsigned threads) {
  if (threads <= kMaxDirectReads) return kMaxDirectReads / threads;
  return thread < kMaxDirectReads ? 1 : 0;
}

// A copy to a device costs as much as about 200 KB of its bytes (measured on an H200). So one
// thread takes up to this many items that follow each other in a file, and their copies are
// joined.
constexpr size_t kMaxStagedRun = 4;

// The slabs of the targets whose memory is here.
std::vector<SlabMap> SlabsHere(std::span<const TransferTarget> targets) {
  std::vector<SlabMap> slabs;
  for (const TransferTarget& target : targets) {
    if (target.sink == nullptr) slabs.emplace_back(target.slab);
  }
  return slabs;
}

bool AnyStaged(std::span<const SlabMap> slabs) {
  return std::any_of(slabs.begin(), slabs.end(),
                     [](const SlabMap& slab) { return slab.staged() != nullptr; });
}

// One running transfer, shared by its threads.
class Job {
 public:
  Job(const WindowSource& source, std::span<const TransferTarget> targets,
      const TransferOptions& options, TransferProgress& progress)
      : source_(source),
        targets_(targets),
        options_(options),
        progress_(progress),
        slabs_(SlabsHere(targets)),
        files_(*source.index, {}, options.io_mode, options.access),
        queue_(source, options, slabs_, files_),
        totals_(source.counters, 0),
        digests_(options.digests ? targets.size() : 0) {
    for (size_t t = 0; t < digests_.size(); ++t) {
      if (targets[t].sink == nullptr) digests_[t].resize(source.targets[t].tensors);
    }
  }

  absl::Status Run() {
    CKPTD_ASSIGN_OR_RETURN(const WindowQueue::First first, queue_.Start());
    const unsigned wanted = options_.threads == 0 ? UsefulThreads() : options_.threads;
    const size_t useful = first.only ? std::min<size_t>(first.items, kMaxThreads) : kMaxThreads;
    const unsigned count = std::clamp(wanted, 1U, std::max(static_cast<unsigned>(useful), 1U));
    if (AnyStaged(slabs_)) run_length_ = std::clamp<size_t>(first.items / count, 1, kMaxStagedRun);
    AtOnce(count, count, [this, count](size_t i) {
      Work(DirectReadsOf(static_cast<unsigned>(i), count));
    });
    std::vector<std::shared_ptr<TransferWindow>> unread;
    {
      MutexLock lock(mutex_);
      CKPTD_RETURN_IF_ERROR(error_);
      unread.swap(unread_);
    }
    for (const auto& window : unread) CKPTD_RETURN_IF_ERROR(KeepDigests(*window));
    for (const TransferTarget& target : targets_) {
      if (target.sink != nullptr) CKPTD_RETURN_IF_ERROR(target.sink->Finish());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TransferResult> Result() {
    TransferResult result;
    MutexLock lock(mutex_);
    result.storage_bytes = storage_bytes_;
    result.done = totals_;
    const bool complete = options_.parts == 1 && source_.complete;
    if (complete) CKPTD_RETURN_IF_ERROR(CheckTotals());
    result.digests = std::move(digests_);
    return result;
  }

 private:
  unsigned UsefulThreads() const {
    unsigned threads = DefaultThreads();
    for (const SlabMap& slab : slabs_) {
      if (slab.staged() != nullptr) threads = std::min(threads, slab.staged()->Lanes());
    }
    return threads;
  }

  absl::Status CheckTotals() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const WindowSource::TargetTotals& totals : source_.targets) {
      const uint64_t written = totals_[totals.counters.front()];
      if (written == totals.tensor_bytes) continue;
      return MakeError(
          absl::StatusCode::kInternal, reason::kCoverage,
          fmt::format("placing the shard of rank {}: {} bytes were written, its tensors "
                      "have {}; this is a defect of the planner, report it with the "
                      "layout",
                      totals.rank, written, totals.tensor_bytes),
          {{"rank", std::to_string(totals.rank)}});
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
    ItemWorker worker(slabs, files_, direct_reads);
    FileTimes::Reader times(progress_.files);
    std::vector<uint64_t> done(targets_.size());
    ClaimedItems claimed;
    WindowVisit visit;
    while (!stop_.load(std::memory_order_relaxed)) {
      CKPTD_RETURN_IF_ERROR(Claim(worker, direct_reads, claimed));
      if (claimed.items.empty()) break;
      CKPTD_RETURN_IF_ERROR(Poll());
      const ClaimedItems::Item next = std::move(claimed.items.front());
      claimed.items.pop_front();
      --claimed.prefetched;
      if (next.window != visit.window) {
        CKPTD_RETURN_IF_ERROR(Leave(slabs, visit));
        CKPTD_RETURN_IF_ERROR(Enter(next.window, visit));
      }
      ++visit.items;
      std::fill(done.begin(), done.end(), 0);
      // While the end of a long item is placed, the next items are already read.
      const auto poll = [&]() -> absl::Status {
        if (claimed.items.empty() && worker.HasRoom()) {
          CKPTD_RETURN_IF_ERROR(Claim(worker, direct_reads, claimed));
        }
        return Poll();
      };
      const uint32_t file = next.item->file;
      times.Begin(file, files_.path(file), std::chrono::steady_clock::now());
      CKPTD_RETURN_IF_ERROR(worker.Do(next.window, *next.item, done, poll));
      times.End(worker.needed_bytes(), std::chrono::steady_clock::now());
      CKPTD_RETURN_IF_ERROR(slabs.status());
      Count(worker, done);
      if (next.window->items_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        CKPTD_RETURN_IF_ERROR(Finish(next.window));
      }
    }
    return Leave(slabs, visit);
  }

  // Items that a thread has claimed and not yet done.
  struct ClaimedItems {
    struct Item {
      std::shared_ptr<TransferWindow> window;
      const WorkItem* item = nullptr;
    };
    std::deque<Item> items;
    size_t prefetched = 0;  // how many of them, from the front, were given to the worker
  };

  // The items that a thread has done in one window.
  struct WindowVisit {
    std::shared_ptr<TransferWindow> window;
    size_t items = 0;
  };

  absl::Status Enter(std::shared_ptr<TransferWindow> window, WindowVisit& visit) {
    visit = {std::move(window), 0};
    return source_.user == nullptr ? absl::OkStatus() : source_.user->Enter(visit.window->number);
  }

  // If a step user waits for the window, waits until this thread's bytes are in place and counts
  // them.
  absl::Status Leave(SlabWriter& slabs, WindowVisit& visit) {
    if (source_.user == nullptr || visit.items == 0) return absl::OkStatus();
    CKPTD_RETURN_IF_ERROR(slabs.Finish());
    std::atomic<size_t>& left = visit.window->items_not_in_place;
    const size_t before = left.fetch_sub(visit.items, std::memory_order_acq_rel);
    if (before == visit.items) source_.user->Filled(visit.window->number);
    visit = {};
    return absl::OkStatus();
  }

  // Claims the next item, and as many more as can be prefetched.
  absl::Status Claim(ItemWorker& worker, size_t direct_reads, ClaimedItems& claimed) {
    while (claimed.prefetched <= direct_reads) {
      if (claimed.prefetched == claimed.items.size()) {
        CKPTD_ASSIGN_OR_RETURN(const bool more, ClaimMore(claimed));
        if (!more) return absl::OkStatus();
      }
      if (!worker.Prefetch(*claimed.items[claimed.prefetched++].item)) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  // False: nothing is left.
  absl::StatusOr<bool> ClaimMore(ClaimedItems& claimed) {
    while (true) {
      CKPTD_ASSIGN_OR_RETURN(const WindowQueue::Claimed next, queue_.Next(run_length_));
      if (next.window == nullptr) return false;
      for (const WorkItem& item : next.items) claimed.items.push_back({next.window, &item});
      if (!next.items.empty()) return true;
      CKPTD_RETURN_IF_ERROR(Finish(next.window));
      if (source_.user != nullptr) source_.user->Filled(next.window->number);
    }
  }

  // Keeps the digests of a window that is done. If other threads have staged some of its bytes,
  // that has to wait until these are in place.
  absl::Status Finish(const std::shared_ptr<TransferWindow>& window) {
    if (window->board == nullptr) return absl::OkStatus();
    if (!window->board->HasUnread()) return KeepDigests(*window);
    MutexLock lock(mutex_);
    unread_.push_back(window);
    return absl::OkStatus();
  }

  absl::Status KeepDigests(const TransferWindow& window) {
    CKPTD_ASSIGN_OR_RETURN(const auto found, window.board->Combine());
    MutexLock lock(mutex_);
    for (size_t i = 0; i < found.size(); ++i) {
      const size_t target = window.parts.here_at[i];
      const std::vector<uint32_t>* numbers = window.numbers[target];
      for (size_t t = 0; t < found[i].size(); ++t) {
        digests_[target][numbers == nullptr ? t : (*numbers)[t]] = found[i][t];
      }
    }
    return absl::OkStatus();
  }

  // Only one thread polls at a time, so `interrupted` need not be thread-safe.
  absl::Status Poll() {
    // The caller never sees this: the error that stopped us came first.
    if (stop_.load(std::memory_order_relaxed)) return absl::CancelledError("stopped");
    if (!options_.interrupted) return absl::OkStatus();
    MutexLock lock(poll_mutex_);
    return options_.interrupted();
  }

  void Stop(absl::Status status) {
    absl::Status first;
    {
      MutexLock lock(mutex_);
      if (error_.ok()) error_ = std::move(status);
      first = error_;
    }
    if (source_.user != nullptr) source_.user->Stop(first);
    // Set last: a thread that stops because of it must find the true error.
    stop_.store(true, std::memory_order_relaxed);
  }

  void Count(const ItemWorker& worker, std::span<const uint64_t> done) {
    const uint64_t storage_bytes = worker.needed_bytes();
    progress_.storage_bytes.fetch_add(storage_bytes, std::memory_order_relaxed);
    if (worker.io_mode() == IoMode::kMap) progress_.mapped_bytes += storage_bytes;
    if (worker.io_mode() == IoMode::kDirect) progress_.direct_bytes += storage_bytes;
    for (size_t t = 0; t < done.size(); ++t) {
      if (done[t] == 0) continue;
      for (const size_t counter : source_.targets[t].counters) {
        progress_.done[counter].fetch_add(done[t], std::memory_order_relaxed);
      }
    }
    MutexLock lock(mutex_);
    storage_bytes_ += storage_bytes;
    for (size_t t = 0; t < done.size(); ++t) {
      for (const size_t counter : source_.targets[t].counters) totals_[counter] += done[t];
    }
  }

  const WindowSource& source_;
  const std::span<const TransferTarget> targets_;
  const TransferOptions& options_;
  TransferProgress& progress_;
  const std::vector<SlabMap> slabs_;
  size_t run_length_ = 1;  // items that a thread claims at a time; set before the threads start
  SourceFiles files_;
  WindowQueue queue_;
  std::atomic<bool> stop_ = false;
  Mutex poll_mutex_;
  Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<TransferWindow>> unread_ ABSL_GUARDED_BY(mutex_);
  uint64_t storage_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> totals_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<uint64_t>> digests_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<TransferResult> Transfer(const WindowSource& source,
                                        std::span<const TransferTarget> targets,
                                        const TransferOptions& options,
                                        TransferProgress& progress) {
  const bool digests_fit = !options.digests || (options.parts == 1 && source.user == nullptr);
  if (progress.done.size() < source.counters || options.part >= options.parts || !digests_fit) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("starting part {} of {} of a transfer: progress has room for {} "
                                 "of {} targets, digests are {}",
                                 options.part, options.parts, progress.done.size(), source.counters,
                                 options.digests ? "on" : "off"));
  }
  Job job(source, targets, options, progress);
  CKPTD_RETURN_IF_ERROR(job.Run());
  return job.Result();
}

// Lists each target once per view. In every step one of these views has its plan.
std::vector<TransferTarget> ViewsOf(std::span<const StepTarget> targets) {
  std::vector<TransferTarget> views;
  for (const StepTarget& target : targets) {
    for (const SlabView& view : target.views) views.push_back({nullptr, view, nullptr});
  }
  return views;
}

}  // namespace

absl::StatusOr<TransferResult> RunTransfer(const CheckpointIndex& index,
                                           std::span<const TransferTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress) {
  return Transfer(WholePlans(index, targets), targets, options, progress);
}

absl::StatusOr<TransferResult> RunTransfer(const GroupPlan& group,
                                           std::span<const PlannedRank* const> ranks,
                                           std::span<const TransferTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress) {
  return Transfer(PlansOfGroup(group, ranks, targets, options.window_copies), targets, options,
                  progress);
}

absl::StatusOr<TransferResult> RunTransfer(const GroupPlan& group, const StepList& steps,
                                           std::span<const StepTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress, StepUser& user) {
  const std::vector<TransferTarget> views = ViewsOf(targets);
  return Transfer(StepsOfGroup(group, steps, targets, user), views, options, progress);
}

}  // namespace ckptd
