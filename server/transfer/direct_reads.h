// Reads past the page cache (O_DIRECT), several in flight, by io_uring: as fast as
// the storage delivers, at little cost in processor time, and without pushing out
// what others have cached.
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

// A ring of slots, each with room for one read. One per thread; not thread-safe.
class DirectReads {
 public:
  // Room for `slots` reads of up to `most` bytes each. Null where the kernel, or
  // what confines this process, offers no io_uring.
  static std::unique_ptr<DirectReads> Create(size_t slots, uint64_t most);
  // Waits for what is in flight: its memory must not go before.
  ~DirectReads();
  DirectReads(const DirectReads&) = delete;
  DirectReads& operator=(const DirectReads&) = delete;

  // Starts reading bytes [begin, end) of `fd`, which is open with O_DIRECT and stays
  // so until Release. The slot; nullopt when none is free, the range is too long, or
  // the kernel takes no more.
  std::optional<size_t> Start(int fd, uint64_t begin, uint64_t end);

  // The bytes that Start asked for, once they are here; valid until Release. Empty
  // when they could not be read this way, or the file has fewer: read them another
  // way, which says why.
  std::span<const std::byte> Wait(size_t slot);

  // Gives the slot back; waits for its read if nobody has.
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
  bool broken_ = false;  // the kernel took a read back: no more of them
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_DIRECT_READS_H_
