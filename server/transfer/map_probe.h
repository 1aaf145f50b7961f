// Finds out whether cached bytes are better copied out of the page cache than mapped. It measures
// on the bytes themselves, because that depends on the pages in which the kernel holds them.
#ifndef CKPTD_SERVER_TRANSFER_MAP_PROBE_H_
#define CKPTD_SERVER_TRANSFER_MAP_PROBE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ckptd {

// Bytes that one page fault maps if the kernel keeps single pages (fault_around_bytes of Linux).
// In a large folio it maps more.
inline constexpr size_t kFaultAroundBytes = 64 << 10;
// A mapping is faster until this many bytes take longer than this to map. In large folios they
// take 0.3 to 1 us, in single pages 2.5 to 8, and later at least as much to unmap.
inline constexpr std::chrono::nanoseconds kSlowFault{2000};
// Smaller files are not probed: the difference would not be noticed.
inline constexpr uint64_t kMinProbedFileBytes = uint64_t{64} << 20;

// Each BlockReader owns one. Not thread-safe: one per thread.
class MapProbe {
 public:
  using Clock = std::chrono::steady_clock::time_point (*)();

  // `now` is for tests.
  explicit MapProbe(Clock now = std::chrono::steady_clock::now) : now_(now) {}

  // Whether the next item is better copied out. `mapped` is its mapping. Touches some of its
  // pages, which maps them, and takes the median time. If several probes in a row agree, 1, 3, 7
  // ... kMaxReuse further items get the same answer without a probe. False for a file that has
  // been cut.
  bool IsSlow(std::span<const std::byte> mapped);

 private:
  static constexpr size_t kTouches = 7;
  static constexpr int kMaxReuse = 63;

  const Clock now_;
  bool slow_ = false;    // the last answer
  int reuse_ = 0;        // items that get the last probe's answer
  int reuses_left_ = 0;  // how many of these are left
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_MAP_PROBE_H_
