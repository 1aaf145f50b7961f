// How a client holds a shard. Used by the daemon's seams and by the clients.
#ifndef CKPTD_COMMON_BASE_ATTACH_MODE_H_
#define CKPTD_COMMON_BASE_ATTACH_MODE_H_

#include <cstdint>

namespace ckptd {

// Values equal ckptd.v1.AttachMode.
enum class AttachMode : uint8_t {
  kShared = 1,     // many readers of the same memory, mapped read-only
  kPrivate = 2,    // copy-on-write view; the daemon's shard is unchanged
  kExclusive = 3,  // the memory itself, read-write; the daemon keeps nothing
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_ATTACH_MODE_H_
