#include "server/transfer/map_probe.h"

#include <algorithm>
#include <array>

#include "server/transfer/sigbus_guard.h"

namespace ckptd {

bool MapProbe::Slow(std::span<const std::byte> mapped) {
  if (trusted_ > 0) {
    --trusted_;
    return slow_;
  }
  if (mapped.size() < kTouches * kFaultReach) return false;
  // Not one time for all: a virtual machine may lose its processor in between.
  std::array<std::chrono::nanoseconds, kTouches> took = {};
  const bool whole = RunGuarded(mapped, [&] {
    for (size_t i = 0; i < kTouches; ++i) {
      const auto before = now_();
      static_cast<void>(*static_cast<const volatile std::byte*>(&mapped[i * kFaultReach]));
      took[i] = now_() - before;
    }
  });
  std::nth_element(took.begin(), took.begin() + kTouches / 2, took.end());
  const bool slow = whole && took[kTouches / 2] > kSlowFault;
  // The first megabytes of a file that was read in order lie in smaller pages than the rest, and
  // one look alone may be the machine's doing: trust grows, and starts again.
  trust_ = slow == slow_ ? std::min(2 * trust_ + 1, kMostTrust) : 0;
  trusted_ = trust_;
  slow_ = slow;
  return slow;
}

}  // namespace ckptd
