// Arena: its target size, and when it gives memory back.
#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "common/base/slab_mapping.h"
#include "fmt/format.h"
#include "server/memory/host/arena.h"

namespace ckptd {
namespace {

constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

}  // namespace

void Arena::Note(const std::string& line) const {
  if (options_.note != nullptr) options_.note(line);
}

// Slabs use whole huge pages. A smaller target would leave the last piece to be made anew.
void Arena::SetTarget(uint64_t bytes, std::string why) {
  const uint64_t most = options_.budget_bytes / kHugePageBytes * kHugePageBytes;
  target_ = bytes >= most ? most : (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  target_why_ = std::move(why);
}

void Arena::Expect(uint64_t bytes, const std::string& why) {
  if (!options_.automatic.has_value()) return;
  {
    MutexLock lock(mutex_);
    SetTarget(bytes, why);
    last_use_ = std::chrono::steady_clock::now();
  }
  changed_.NotifyAll();
}

void Arena::NoteFilled(uint64_t bytes) {
  {
    MutexLock lock(mutex_);
    --loading_;
    last_use_ = std::chrono::steady_clock::now();
    largest_ = std::max(largest_, bytes);
    if (options_.automatic.has_value()) {
      SetTarget(largest_, "as much as the largest shard that was loaded");
    } else {  // Trim may have lowered it
      SetTarget(options_.arena_target_bytes, options_.arena_why);
    }
  }
  changed_.NotifyAll();
}

// Frees pool memory. The background fill makes no more until something is loaded.
uint64_t Arena::GiveBack(uint64_t bytes, const std::string& why, Pieces& to_release) {
  const size_t before = to_release.size();
  ReapLingering(to_release);
  TrimFree(bytes, to_release);
  uint64_t gained = 0;
  for (size_t i = before; i < to_release.size(); ++i) gained += to_release[i].segment->bytes();
  if (gained > 0) SetTarget(std::min(target_, Held()), why);
  return gained;
}

uint64_t Arena::Trim() {
  const std::string why = "free memory was given back on request";
  Pieces to_release;
  MutexLock lock(mutex_);
  const uint64_t gained = GiveBack(kAll, why, to_release);
  SetTarget(std::min(target_, Held()), why);  // for the case that the fill has just begun
  return gained;
}

std::string Arena::Why() {
  MutexLock lock(mutex_);
  return target_why_;
}

void Arena::GiveBackUnneeded() {
  const AutoArena& automatic = *options_.automatic;
  {
    MutexLock lock(mutex_);
    if (free_.empty() && lingering_.empty()) return;
  }
  const uint64_t available = options_.available_memory().value_or(kAll);
  const bool pressed = available < *automatic.pressure_bytes;
  uint64_t gained = 0;
  std::string why = "free memory was given back: the system is short of it";
  Pieces to_release;
  {
    MutexLock lock(mutex_);
    const auto unused = std::chrono::steady_clock::now() - last_use_;
    if (waiting_ > 0 || pending_ > 0) return;
    if (pressed) {
      const uint64_t reserve = options_.fill_reserve_bytes.value_or(0);
      gained = GiveBack(reserve - std::min(reserve, available), why, to_release);
    } else if (automatic.idle.count() > 0 && unused >= automatic.idle) {
      why = fmt::format("free memory was given back: nothing was loaded for {:.0f} s",
                        std::chrono::duration<double>(automatic.idle).count());
      gained = GiveBack(kAll, why, to_release);
    }
  }
  if (gained > 0) Note(fmt::format("{} ({:.1f} MB)", why, static_cast<double>(gained) / 1e6));
}

void Arena::Remember() {
  uint64_t largest = 0;
  {
    MutexLock lock(mutex_);
    largest = largest_;
  }
  if (std::exchange(remembered_, largest) == largest) return;
  if (options_.automatic->remember != nullptr) options_.automatic->remember(largest);
}

}  // namespace ckptd
