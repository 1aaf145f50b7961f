// Reads the bytes of a piece, without those that lie between them.
#ifndef CKPTD_COMMON_SOURCE_PIECE_READER_H_
#define CKPTD_COMMON_SOURCE_PIECE_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/index.h"
#include "common/source/piece.h"
#include "common/source/storage.h"

namespace ckptd {

// Not thread-safe. What it is made with outlives it.
class PieceReader {
 public:
  // `object` is the piece's. The piece holds together (WhyImpossible).
  PieceReader(const ReadableObject& object, const Piece& piece, Dtype dtype)
      : object_(object), end_(piece.offset + SpanOf(piece, dtype)), runs_(piece, dtype) {}

  // The next bytes of the piece, as PieceRuns goes through them: as many as `out` has room for, or
  // as are left; 0 at the end. Blocking. Errors: those of ReadableObject::ReadAt.
  absl::StatusOr<size_t> Read(std::span<std::byte> out);

 private:
  absl::Status ReadPart(std::span<std::byte> out);

  const ReadableObject& object_;
  const uint64_t end_;  // of the piece
  PieceRuns runs_;
  uint64_t used_ = 0;  // of the run
  // What was read last where gaps are short, and where it begins.
  std::vector<std::byte> window_;
  uint64_t window_begin_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_PIECE_READER_H_
