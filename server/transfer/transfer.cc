#include "server/transfer/transfer.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/block_reader.h"
#include "server/transfer/digest_board.h"
#include "server/transfer/item_placer.h"
#include "server/transfer/schedule.h"
#include "server/transfer/sigbus_guard.h"
#include "server/transfer/slab_map.h"

namespace ckptd {
namespace {

// With one read buffer each this caps staging memory at 16 MiB.
constexpr unsigned kMaxThreads = (16 << 20) / kReadBlockBytes;
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

// One running transfer, shared by its threads.
class Job {
 public:
  Job(const CheckpointIndex& index, std::span<const TransferTarget> targets,
      const TransferOptions& options, TransferProgress& progress, const Schedule& schedule)
      : targets_(targets),
        options_(options),
        progress_(progress),
        schedule_(schedule),
        slabs_(MakeSlabs(targets)),
        files_(index, schedule.items, options.map_cached_files),
        board_(options.digests ? std::make_unique<DigestBoard>(targets, slabs_) : nullptr),
        totals_(targets.size(), 0) {}

  absl::Status Run() {
    const unsigned wanted = options_.threads == 0 ? DefaultThreads() : options_.threads;
    const auto useful =
        static_cast<unsigned>(std::min<size_t>(schedule_.items.size(), kMaxThreads));
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::clamp(wanted, 1U, std::max(useful, 1U)); ++i) {
      try {
        threads.emplace_back([this] { Work(); });
      } catch (const std::system_error& error) {
        if (!threads.empty()) break;  // fewer will do
        return MakeError(
            absl::StatusCode::kResourceExhausted, reason::kNoMemory,
            fmt::format("starting a reader thread: {}; raise the limit of threads", error.what()));
      }
    }
    for (std::thread& thread : threads) thread.join();
    MutexLock lock(mutex_);
    return error_;
  }

  absl::StatusOr<TransferResult> Result() {
    TransferResult result;
    MutexLock lock(mutex_);
    result.storage_bytes = storage_bytes_;
    for (size_t t = 0; t < targets_.size(); ++t) {
      const RankPlan& plan = *targets_[t].plan;
      if (totals_[t] == plan.tensor_bytes) continue;
      return MakeError(
          absl::StatusCode::kInternal, reason::kCoverage,
          fmt::format("placing the shard of rank {}: {} bytes were written, its tensors "
                      "have {}; this is a defect of the planner, report it with the "
                      "layout",
                      plan.rank, totals_[t], plan.tensor_bytes),
          {{"rank", std::to_string(plan.rank)}});
    }
    if (board_ != nullptr) {
      CKPTD_ASSIGN_OR_RETURN(result.digests, board_->Combine());
    }
    return result;
  }

 private:
  static std::vector<SlabMap> MakeSlabs(std::span<const TransferTarget> targets) {
    std::vector<SlabMap> slabs;
    for (const TransferTarget& target : targets) slabs.emplace_back(target.slab);
    return slabs;
  }

  void Work() {
    UnblockSigbus();
    BlockReader reader(files_);
    ItemPlacer placer(schedule_, targets_, slabs_, board_.get());
    std::vector<uint64_t> done(targets_.size());
    while (!stop_.load(std::memory_order_relaxed)) {
      const size_t next = next_item_.fetch_add(1, std::memory_order_relaxed);
      if (next >= schedule_.items.size()) return;
      std::fill(done.begin(), done.end(), 0);
      absl::Status status = Poll();
      if (status.ok()) status = DoItem(schedule_.items[next], reader, placer, done);
      if (!status.ok()) {
        Stop(std::move(status));
        return;
      }
      Count(placer.needed_bytes(), done);
    }
  }

  absl::Status DoItem(const WorkItem& item, BlockReader& reader, ItemPlacer& placer,
                      std::span<uint64_t> done) {
    CKPTD_RETURN_IF_ERROR(placer.Begin(item));
    CKPTD_RETURN_IF_ERROR(Blame(reader.Begin(item), placer, item.begin));
    uint64_t unpolled = 0;
    for (const SourceRange& range : placer.ranges()) {
      for (uint64_t at = range.begin; at < range.end;) {
        if (unpolled >= kItemBytes) {  // an item may be much longer
          unpolled = 0;
          CKPTD_RETURN_IF_ERROR(Poll());
        }
        const uint64_t end = placer.BlockEnd(at, range.end);
        const absl::Status status =
            reader.Use(at, static_cast<size_t>(end - at),
                       [&placer, at](std::span<const std::byte> data) { placer.Place(at, data); });
        CKPTD_RETURN_IF_ERROR(Blame(status, placer, at));
        unpolled += end - at;
        at = end;
      }
    }
    reader.End();
    return placer.Finish(done);
  }

  static absl::Status Blame(const absl::Status& status, const ItemPlacer& placer, uint64_t offset) {
    if (status.ok()) return status;
    const std::string& tensor = placer.TensorAt(offset);
    return WithFact(WithContext(status, "loading tensor " + tensor), "tensor", tensor);
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

  void Count(uint64_t storage_bytes, std::span<const uint64_t> done) {
    progress_.storage_bytes.fetch_add(storage_bytes, std::memory_order_relaxed);
    for (size_t t = 0; t < done.size(); ++t) {
      if (done[t] != 0) progress_.done[t].fetch_add(done[t], std::memory_order_relaxed);
    }
    MutexLock lock(mutex_);
    storage_bytes_ += storage_bytes;
    for (size_t t = 0; t < done.size(); ++t) totals_[t] += done[t];
  }

  const std::span<const TransferTarget> targets_;
  const TransferOptions& options_;
  TransferProgress& progress_;
  const Schedule& schedule_;
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
  if (progress.done.size() < targets.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("starting a transfer: progress has room for {} of {} targets",
                                 progress.done.size(), targets.size()));
  }
  CKPTD_ASSIGN_OR_RETURN(const Schedule schedule, BuildSchedule(index, targets));
  Job job(index, targets, options, progress, schedule);
  CKPTD_RETURN_IF_ERROR(job.Run());
  return job.Result();
}

}  // namespace ckptd
