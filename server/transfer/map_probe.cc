#include "server/transfer/map_probe.h"

#include <algorithm>
#include <array>

#include "server/transfer/sigbus_guard.h"

namespace ckptd {

bool MapProbe::IsSlow(std::span<const std::byte> mapped) {
  if (reuses_left_ > 0) {
    --reuses_left_;
    return slow_;
  }
  if (mapped.size() < kTouches * kFaultAroundBytes) return false;
  // Each touch is timed by itself: a virtual machine may lose its processor in between.
  std::array<std::chrono::nanoseconds, kTouches> took = {};
  const bool whole = RunGuarded(mapped, [&] {
    for (size_t i = 0; i < kTouches; ++i) {
      const auto before = now_();
      static_cast<void>(*static_cast<const volatile std::byte*>(&mapped[i * kFaultAroundBytes]));
      took[i] = now_() - before;
    }
  });
  std::nth_element(took.begin(), took.begin() + kTouches / 2, took.end());
  const bool slow = whole && took[kTouches / 2] > kSlowFault;
  // The first megabytes of a file that was read in order lie in smaller pages than the rest, and
  // one slow probe may be chance. So the number of items per probe grows, and starts again when
  // the answer changes.
  reuse_ = slow == slow_ ? std::min(2 * reuse_ + 1, kMaxReuse) : 0;
  reuses_left_ = reuse_;
  slow_ = slow;
  return slow;
}

}  // namespace ckptd
