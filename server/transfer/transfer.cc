#include "server/transfer/transfer.h"

#include <fmt/format.h>

#include <algorithm>
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

// With one read buffer each this caps staging memory at 16 MiB; direct reads take as
// much again. More in flight slows disks down.
constexpr unsigned kMaxThreads = (16 << 20) / kReadBlockBytes;
constexpr unsigned kMaxDirectReads = (16 << 20) / kItemBytes;

// Of thread number `thread`: an equal part of all; with more threads than that, one
// for each of the first, and the others read through their buffer.
size_t DirectReadsOf(unsigned thread, unsigned threads) {
  if (threads <= kMaxDirectReads) return kMaxDirectReads / threads;
  return thread < kMaxDirectReads ? 1 : 0;
}

// A copy to a device costs as much as some 200 KB do (measured on an H200): what follows each
// other in a file goes through one thread, in stretches of this many items, and becomes few.
constexpr size_t kStagedRun = 4;

// Those whose memory is here.
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
        files_(*source.index, {}, options.way),
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
    if (AnyStaged(slabs_)) run_ = std::clamp<size_t>(first.items / count, 1, kStagedRun);
    AtOnce(count, count, [this, count](size_t i) {
      Work(DirectReadsOf(static_cast<unsigned>(i), count));
    });
    std::vector<std::shared_ptr<TransferWindow>> unread;
    {
      MutexLock lock(mutex_);
      CKPTD_RETURN_IF_ERROR(error_);
      unread.swap(unread_);
    }
    for (const auto& window : unread) CKPTD_RETURN_IF_ERROR(Keep(*window));
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
    for (const WindowSource::Whole& whole : source_.targets) {
      const uint64_t written = totals_[whole.counters.front()];
      if (written == whole.tensor_bytes) continue;
      return MakeError(
          absl::StatusCode::kInternal, reason::kCoverage,
          fmt::format("placing the shard of rank {}: {} bytes were written, its tensors "
                      "have {}; this is a defect of the planner, report it with the "
                      "layout",
                      whole.rank, written, whole.tensor_bytes),
          {{"rank", std::to_string(whole.rank)}});
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
    std::vector<uint64_t> done(targets_.size());
    ClaimedItems agenda;
    WindowVisit stay;
    while (!stop_.load(std::memory_order_relaxed)) {
      CKPTD_RETURN_IF_ERROR(Claim(worker, direct_reads, agenda));
      if (agenda.items.empty()) break;
      CKPTD_RETURN_IF_ERROR(Poll());
      const ClaimedItems::Item next = std::move(agenda.items.front());
      agenda.items.pop_front();
      --agenda.ahead;
      if (next.window != stay.window) {
        CKPTD_RETURN_IF_ERROR(Leave(slabs, stay));
        CKPTD_RETURN_IF_ERROR(Enter(next.window, stay));
      }
      ++stay.items;
      std::fill(done.begin(), done.end(), 0);
      // While the end of a long item is placed, what comes next is in flight.
      const auto poll = [&]() -> absl::Status {
        if (agenda.items.empty() && worker.HasRoom()) {
          CKPTD_RETURN_IF_ERROR(Claim(worker, direct_reads, agenda));
        }
        return Poll();
      };
      CKPTD_RETURN_IF_ERROR(worker.Do(next.window, *next.item, done, poll));
      CKPTD_RETURN_IF_ERROR(slabs.status());
      Count(worker, done);
      if (next.window->items_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        CKPTD_RETURN_IF_ERROR(Finish(next.window));
      }
    }
    return Leave(slabs, stay);
  }

  // What a thread has claimed and not done.
  struct ClaimedItems {
    struct Item {
      std::shared_ptr<TransferWindow> window;
      const WorkItem* item = nullptr;
    };
    std::deque<Item> items;
    size_t ahead = 0;  // the first of them, which the worker knows
  };

  // A thread's time in one window.
  struct WindowVisit {
    std::shared_ptr<TransferWindow> window;
    size_t items = 0;
  };

  absl::Status Enter(std::shared_ptr<TransferWindow> window, WindowVisit& stay) {
    stay = {std::move(window), 0};
    return source_.user == nullptr ? absl::OkStatus() : source_.user->Enter(stay.window->number);
  }

  // Where somebody waits for the window: sees to it that what this thread did is in place.
  absl::Status Leave(SlabWriter& slabs, WindowVisit& stay) {
    if (source_.user == nullptr || stay.items == 0) return absl::OkStatus();
    CKPTD_RETURN_IF_ERROR(slabs.Finish());
    const size_t before = stay.window->items_away.fetch_sub(stay.items, std::memory_order_acq_rel);
    if (before == stay.items) source_.user->Filled(stay.window->number);
    stay = {};
    return absl::OkStatus();
  }

  // The next item, and as many more as are read ahead.
  absl::Status Claim(ItemWorker& worker, size_t direct_reads, ClaimedItems& agenda) {
    while (agenda.ahead <= direct_reads) {
      if (agenda.ahead == agenda.items.size()) {
        CKPTD_ASSIGN_OR_RETURN(const bool more, ClaimMore(agenda));
        if (!more) return absl::OkStatus();
      }
      if (!worker.Ahead(*agenda.items[agenda.ahead++].item)) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  // False: nothing is left.
  absl::StatusOr<bool> ClaimMore(ClaimedItems& agenda) {
    while (true) {
      CKPTD_ASSIGN_OR_RETURN(const WindowQueue::Claimed next, queue_.Next(run_));
      if (next.window == nullptr) return false;
      for (const WorkItem& item : next.items) agenda.items.push_back({next.window, &item});
      if (!next.items.empty()) return true;
      CKPTD_RETURN_IF_ERROR(Finish(next.window));
      if (source_.user != nullptr) source_.user->Filled(next.window->number);
    }
  }

  // Keeps the digests of a window that is done; where some are of bytes that other
  // threads have staged, when these are in place.
  absl::Status Finish(const std::shared_ptr<TransferWindow>& window) {
    if (window->board == nullptr) return absl::OkStatus();
    if (!window->board->HasUnread()) return Keep(*window);
    MutexLock lock(mutex_);
    unread_.push_back(window);
    return absl::OkStatus();
  }

  absl::Status Keep(const TransferWindow& window) {
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

  // One thread at a time: callers need not make `interrupted` thread-safe.
  absl::Status Poll() {
    // Never seen by the caller: the error that stopped us came first.
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
    // Last, so that whoever stops because of it finds the true error in place.
    stop_.store(true, std::memory_order_relaxed);
  }

  void Count(const ItemWorker& worker, std::span<const uint64_t> done) {
    const uint64_t storage_bytes = worker.needed_bytes();
    progress_.storage_bytes.fetch_add(storage_bytes, std::memory_order_relaxed);
    if (worker.way() == IoMode::kMap) progress_.mapped_bytes += storage_bytes;
    if (worker.way() == IoMode::kDirect) progress_.direct_bytes += storage_bytes;
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
  size_t run_ = 1;  // items; set before there are threads
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

// Each target once per view: in every step one of them has its plan.
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
