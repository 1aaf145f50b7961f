// Whether cached bytes are better copied out of the page cache than mapped: tried on the
// bytes themselves, because it hangs on how the kernel happens to hold them.
#ifndef CKPTD_SERVER_TRANSFER_MAP_PROBE_H_
#define CKPTD_SERVER_TRANSFER_MAP_PROBE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ckptd {

// What one fault maps where the kernel keeps single pages (fault_around_bytes of Linux);
// of a large folio it maps more.
inline constexpr size_t kFaultReach = 64 << 10;
// A mapping is the faster way until a reach takes longer than this to map: of large folios it
// takes 0.3 to 1 us, of single pages 2.5 to 8, and at the end at least as much to unmap.
inline constexpr std::chrono::nanoseconds kSlowFault{2000};
// Fewer bytes than this in a file: whatever they cost, nobody waits for it.
inline constexpr uint64_t kLeastProbedFile = uint64_t{64} << 20;

// One per thread; not thread-safe.
class MapProbe {
 public:
  using Clock = std::chrono::steady_clock::time_point (*)();

  // `now` is for tests.
  explicit MapProbe(Clock now = std::chrono::steady_clock::now) : now_(now) {}

  // Whether the next item, of which `mapped` is the mapping, is better copied out. Touches
  // some of it, by which it is mapped, and takes the median. The more looks in a row were alike,
  // the more items (1, 3, 7 ... kMostTrust) get that answer without one. A file found cut: no.
  bool Slow(std::span<const std::byte> mapped);

 private:
  static constexpr size_t kTouches = 7;
  static constexpr int kMostTrust = 63;

  const Clock now_;
  bool slow_ = false;  // what it answered last
  int trust_ = 0;      // items for which the last look counted
  int trusted_ = 0;    // of which are left
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_MAP_PROBE_H_
