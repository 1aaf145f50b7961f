// The checksum of zip files.
#ifndef CKPTD_COMMON_EXPORT_CRC32_H_
#define CKPTD_COMMON_EXPORT_CRC32_H_

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ckptd {

// The checksum of data that had `crc` so far (none: 0) and goes on with `bytes`. Thread-safe.
inline uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes) {
  constexpr size_t kMost = size_t{1} << 30;  // zlib counts in 32 bits
  auto sum = static_cast<uLong>(crc);
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kMost);
    sum = ::crc32(sum, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(n));
    bytes = bytes.subspan(n);
  }
  return static_cast<uint32_t>(sum);
}

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_CRC32_H_
