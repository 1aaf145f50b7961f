// How the bytes of a source file are read.
#ifndef CKPTD_SERVER_TRANSFER_IO_MODE_H_
#define CKPTD_SERVER_TRANSFER_IO_MODE_H_

#include <cstdint>

namespace ckptd {

enum class IoMode : uint8_t {
  // Chosen for each item. Cached items are mapped, but buffered for staging memory and where
  // mapping proves slow. Other items are read directly, or buffered where that is not possible.
  kAuto,
  kMap,     // a mapping of the page cache, which saves a copy
  kBuffer,  // pread into a small buffer, or straight into staging memory; works everywhere
  kDirect,  // past the page cache; buffered where that is not possible
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_IO_MODE_H_
