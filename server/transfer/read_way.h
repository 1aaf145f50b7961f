// By which way the bytes of a source file come.
#ifndef CKPTD_SERVER_TRANSFER_READ_WAY_H_
#define CKPTD_SERVER_TRANSFER_READ_WAY_H_

#include <cstdint>

namespace ckptd {

enum class ReadWay : uint8_t {
  kAuto,    // for each item: mapped when it is cached (buffered, for staging), else direct, else buffered
  kMap,     // a mapping of the page cache, which saves a copy
  kBuffer,  // pread into a small buffer: works everywhere
  kDirect,  // past the page cache; where that cannot be, buffered
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_READ_WAY_H_
