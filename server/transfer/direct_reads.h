// Reads past the page cache (O_DIRECT) by io_uring, several at a time. They are as fast as the
// storage, take little processor time, and do not evict what others have cached.
#ifndef CKPTD_SERVER_TRANSFER_DIRECT_READS_H_
#define CKPTD_SERVER_TRANSFER_DIRECT_READS_H_

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/posix.h"

namespace ckptd {

// A ring of slots, each with room for one read. DirectItems owns it. Not thread-safe: one per
// thread.
class DirectReads {
 public:
  // Room for `slots` reads of up to `most` bytes each. Null if the kernel, or the container's
  // seccomp filter, offers no io_uring.
  static std::unique_ptr<DirectReads> Create(size_t slots, uint64_t most);
  // Waits for the reads in flight, because the kernel writes to this object's memory.
  ~DirectReads();
  DirectReads(const DirectReads&) = delete;
  DirectReads& operator=(const DirectReads&) = delete;

  // Starts to read bytes [begin, end) of `fd`, which must be open with O_DIRECT until Release.
  // Returns the slot. Nullopt if no slot is free, the range is too long, or the kernel takes no
  // more reads.
  std::optional<size_t> Start(int fd, uint64_t begin, uint64_t end);

  // Waits for the bytes that Start asked for. They are valid until Release. Empty if the read
  // failed or the file has fewer bytes. A plain read then tells why.
  std::span<const std::byte> Wait(size_t slot);

  // Frees the slot. Waits for its read if nobody has.
  void Release(size_t slot);

 private:
  struct Slot {
    std::byte* memory = nullptr;
    uint64_t skipped = 0;  // bytes before `begin`, for alignment
    uint64_t wanted = 0;
    int64_t result = 0;  // bytes read, or -errno
    bool taken = false;
    bool in_flight = false;
  };

  DirectReads(size_t slots, uint64_t most);

  uint64_t most_;
  uint64_t slot_bytes_;
  Mapping memory_;
  std::vector<Slot> slots_;
  io_uring ring_ = {};
  bool broken_ = false;  // the kernel gave a read back, so none is started any more
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_DIRECT_READS_H_
