// Arena: making segments, the background fill, and its reports.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "common/base/status.h"
#include "fmt/format.h"
#include "server/memory/host/arena.h"

namespace ckptd {
namespace {

// How long a load waits until other daemons have faulted in what they claim. They fault in a
// gigabyte or more per second.
constexpr auto kClaimPatience = std::chrono::seconds(30);
// Other daemons do not report progress, so it is polled.
constexpr auto kClaimPollInterval = std::chrono::milliseconds(2);

// Applies to this thread and those that it starts. Trainers start at the same time, and come
// first.
void TakeLowPriority() {
  constexpr int kBehindOthers = 19;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kBehindOthers);
}

}  // namespace

absl::Status Arena::NoMemory(uint64_t asked, uint64_t free, const std::string& why) const {
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kNoMemory,
      fmt::format("allocating {} bytes of host memory: {} bytes are free, the budget is {} bytes: "
                  "{}",
                  asked, free, options_.budget_bytes, why),
      {{"asked_bytes", std::to_string(asked)},
       {"free_bytes", std::to_string(free)},
       {"budget_bytes", std::to_string(options_.budget_bytes)}});
}

absl::Status Arena::StartFilling() {
  if (options_.arena_target_bytes == 0 && !options_.automatic.has_value()) return absl::OkStatus();
  try {
    filler_ = std::thread([this] { FillLoop(); });
  } catch (const std::system_error& error) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                     fmt::format("starting the thread that fills the arena: {}; raise the limit "
                                 "of threads (ulimit -u)",
                                 error.what()));
  }
  return absl::OkStatus();
}

void Arena::StopFilling() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyAll();
  if (filler_.joinable()) filler_.join();
}

// Bytes of the next segment for the pool. 0: none now. Loads that make memory, wait for it, or
// fill it go first.
uint64_t Arena::NextFill() const {
  if (fill_stalled_ || pending_ > 0 || waiting_ > 0 || loading_ > 0) return 0;
  const uint64_t held = Held();
  uint64_t arena = held + transferred_;
  for (const ArenaPiece& piece : lingering_) arena -= piece.segment->bytes();
  if (arena >= target_ || held >= options_.budget_bytes) return 0;
  const uint64_t room =
      std::min({target_ - arena, options_.budget_bytes - held, options_.segment_bytes});
  return room / kHugePageBytes * kHugePageBytes;
}

// Once a load has its memory, the fill's current segment is dropped: finishing it would take
// cores and bandwidth that the load wants.
void Arena::YieldFill() {
  if (filling_work_ != nullptr && loading_ > 0 && waiting_ == 0) filling_work_->Cancel();
}

bool Arena::WaitUntilFilled(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stop_ || (filling_ == 0 && pending_ == 0 && waiting_ == 0 && loading_ == 0 &&
                     NextFill() == 0);
  };
  return changed_.WaitUntil(mutex_, deadline, settled) && !stop_ && !fill_stalled_;
}

void Arena::FillLoop() {
  TakeLowPriority();
  for (bool stop = false; !stop;) {
    uint64_t bytes = 0;
    {
      MutexLock lock(mutex_);
      AwaitWork();
      stop = stop_;
      if (!stop) bytes = filling_ = NextFill();
    }
    if (bytes > 0) FillOnce(bytes);
    if (!options_.automatic.has_value()) continue;
    Remember();
    if (!stop) GiveBackUnneeded();
  }
}

void Arena::AwaitWork() {
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stop_ || NextFill() > 0 || (options_.automatic.has_value() && largest_ > remembered_);
  };
  if (!options_.automatic.has_value()) return changed_.Wait(mutex_, due);
  const auto look = std::chrono::ceil<std::chrono::steady_clock::duration>(
      options_.automatic->poll_interval);
  changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + look, due);
}

absl::Status Arena::NoneLeft(uint64_t asked, uint64_t reserve,
                             const MemoryClaims::Answer& answer) const {
  std::string why =
      "this machine or its container has no more memory; free some or raise the limit";
  if (reserve > 0) why = fmt::format("{} bytes are reserved for others, and {}", reserve, why);
  if (answer.claimed > 0) {
    why = fmt::format("other daemons here are allocating {} bytes, and {}", answer.claimed, why);
  }
  return NoMemory(asked, answer.available - std::min(answer.available, answer.claimed), why);
}

uint64_t Arena::LoadReserve(uint64_t fresh) const {
  return options_.load_reserve_bytes.value_or((uint64_t{16} << 20) + fresh / 256);
}

// Frees pool memory until the system has `fresh` bytes that nobody claims, for each daemon of this
// host: what lies idle here could be missing there. Memory that others have faulted in is counted
// twice until they lower their claims. So while only that could be missing, this waits.
absl::StatusOr<MemoryClaim> Arena::ClaimFresh(uint64_t asked, uint64_t fresh) {
  const auto deadline = std::chrono::steady_clock::now() + kClaimPatience;
  const uint64_t reserve = LoadReserve(fresh);
  for (bool trimmed = false;; trimmed = true) {
    CKPTD_ASSIGN_OR_RETURN(MemoryClaims::Answer answer, claims_.Claim(fresh, reserve));
    if (!trimmed) {
      const uint64_t wanted = (fresh + reserve) * options_.local_daemons + answer.claimed;
      Pieces to_release;
      MutexLock lock(mutex_);
      TrimFree(wanted - std::min(wanted, answer.available), to_release);
    }
    if (answer.claim.has_value()) return *std::move(answer.claim);
    if (!trimmed) continue;
    const bool never = answer.available < fresh + reserve;
    if (never || std::chrono::steady_clock::now() >= deadline) {
      return NoneLeft(asked, reserve, answer);
    }
    std::this_thread::sleep_for(kClaimPollInterval);
  }
}

absl::StatusOr<std::unique_ptr<HostSegment>> Arena::MakeSegment(
    uint64_t bytes, unsigned threads, std::function<void(std::shared_ptr<PopulateWork>)> on_start) {
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    id = next_id_++;
  }
  return HostSegment::Create(
      id, bytes,
      {.huge_pages = options_.huge_pages, .threads = threads, .numa_node = options_.numa_node,
       .on_start = std::move(on_start)},
      options_.folder);
}

// Loads wait for this segment, so it waits for nobody.
absl::StatusOr<std::unique_ptr<HostSegment>> Arena::MakeFilling(uint64_t bytes) {
  const uint64_t reserve = options_.fill_reserve_bytes.value_or(0);
  CKPTD_ASSIGN_OR_RETURN(const MemoryClaims::Answer answer, claims_.Claim(bytes, reserve));
  if (!answer.claim.has_value()) {
    return NoneLeft(bytes, reserve, answer);
  }
  // Half the threads, because loads and trainers start at the same time.
  const auto show = [this](std::shared_ptr<PopulateWork> work) {
    {
      MutexLock lock(mutex_);
      filling_work_ = std::move(work);
      YieldFill();
    }
    changed_.NotifyAll();
  };
  return MakeSegment(bytes, std::max(1U, options_.populate_threads / 2), show);
}

void Arena::FillOnce(uint64_t bytes) {
  absl::StatusOr<std::unique_ptr<HostSegment>> made = MakeFilling(bytes);
  const bool yielded = absl::IsCancelled(made.status());
  {
    MutexLock lock(mutex_);
    filling_ = 0;
    filling_work_ = nullptr;
    if (made.ok()) {
      owned_[(*made)->id()] = made->get();
      ArenaPiece piece;
      piece.segment = std::move(*made);
      free_.push_back(std::move(piece));
    }
    fill_stalled_ = !made.ok() && !yielded;
  }
  changed_.NotifyAll();
  if (yielded) return Note("the arena is filled further after the load that has begun");
  if (!made.ok()) Note("the arena is not filled to its target: " + MessageOf(made.status()));
}

std::vector<uint64_t> Arena::Ids() {
  MutexLock lock(mutex_);
  std::vector<uint64_t> ids;
  ids.reserve(owned_.size());
  for (const auto& [id, segment] : owned_) ids.push_back(id);
  return ids;
}

MemoryUsage Arena::Usage() {
  Pieces to_release;
  MutexLock lock(mutex_);
  ReapLingering(to_release);
  MemoryUsage usage;
  usage.budget = options_.budget_bytes;
  usage.used = used_;
  usage.arena_target = target_;
  for (const auto& [id, segment] : owned_) {
    usage.arena += segment->bytes();
    usage.huge_pages += segment->huge_bytes();
  }
  for (const ArenaPiece& piece : lingering_) {
    usage.lingering += piece.segment->bytes();
    usage.arena -= piece.segment->bytes();
    usage.huge_pages -= piece.segment->huge_bytes();
  }
  return usage;
}

absl::StatusOr<UniqueFd> Arena::DuplicateOriginal(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = owned_.find(id);
  if (found == owned_.end()) {
    return absl::NotFoundError(
        fmt::format("handing memory to another daemon: this daemon does not own segment {} (any "
                    "more)", id));
  }
  return found->second->DuplicateOriginal();
}

}  // namespace ckptd
