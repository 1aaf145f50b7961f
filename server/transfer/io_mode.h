// By which way the bytes of a source file come.
#ifndef CKPTD_SERVER_TRANSFER_IO_MODE_H_
#define CKPTD_SERVER_TRANSFER_IO_MODE_H_

#include <cstdint>

namespace ckptd {

enum class IoMode : uint8_t {
  // For each item: mapped when it is cached (buffered for staging, and where mapping is found to
  // be slow), else direct, else buffered.
  kAuto,
  kMap,     // a mapping of the page cache, which saves a copy
  kBuffer,  // pread into a small buffer, or straight into staging memory: works everywhere
  kDirect,  // past the page cache; where that cannot be, buffered
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_IO_MODE_H_
