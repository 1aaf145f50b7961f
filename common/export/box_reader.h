// Reads boxes of pieces into memory in C order, however the bytes lie in their file.
#ifndef CKPTD_COMMON_EXPORT_BOX_READER_H_
#define CKPTD_COMMON_EXPORT_BOX_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/source/index.h"
#include "common/source/storage.h"

namespace ckptd {

// Not thread-safe. Owns up to the scratch memory that it is made with.
class BoxReader {
 public:
  static constexpr size_t kScratchBytes = size_t{16} << 20;

  // `scratch_bytes` hold an element.
  explicit BoxReader(size_t scratch_bytes = kScratchBytes) : scratch_bytes_(scratch_bytes) {}

  // Puts what `piece` has of `block` (boxes of one tensor) into `out`, which holds all of `block` in
  // C order. Other bytes of `out` stay. Elements are `element` bytes, whole ones. The piece holds
  // together (WhyImpossible). Blocking. Errors: those of ReadableObject::ReadAt.
  absl::Status Read(const ReadableObject& object, const Piece& piece, size_t element,
                    const Box& block, std::span<std::byte> out);

 private:
  // A loop: `count` elements, so many bytes from one to the next in the file and in memory.
  struct Loop {
    uint64_t count = 0;
    uint64_t from = 0;
    uint64_t to = 0;
  };
  using Loops = std::vector<Loop>;  // the widest steps in the file first

  static Loops LoopsOf(const Piece& piece, size_t element, const Box& shared, const Box& block);
  static uint64_t SpanOf(const Loops& loops, size_t unit);
  absl::Status ReadLoops(const ReadableObject& object, uint64_t offset, Loops loops, size_t unit,
                         std::byte* out);
  absl::Status ReadEach(const ReadableObject& object, uint64_t offset, const Loops& loops,
                        size_t unit, std::byte* out);

  const size_t scratch_bytes_;
  std::vector<std::byte> scratch_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_BOX_READER_H_
