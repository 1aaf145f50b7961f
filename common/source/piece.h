// The arithmetic of pieces: where the bytes of one lie in its file. Pure; thread-safe.
#ifndef CKPTD_COMMON_SOURCE_PIECE_H_
#define CKPTD_COMMON_SOURCE_PIECE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/source/index.h"

namespace ckptd {

// The most pieces of all tensors of a source together: a hundred bytes each, and more than any job
// saves.
inline constexpr size_t kMaxSourcePieces = 4'000'000;

// `strides` as a piece of these extents keeps them: none where they are those of C order. What a
// dimension of one element has for a stride makes no difference.
Shape CompactStrides(const Shape& extents, Shape strides);

// One stride for each dimension, in elements, also of a piece in C order.
Shape StridesOf(const Piece& piece);

// What `piece` cannot be part of that tensor for, as the end of a sentence ("its box leaves the
// tensor"); empty: it holds together, and lies in a file of `file_bytes`. Whatever else is here
// takes only pieces that do.
std::string_view WhyImpossible(const Piece& piece, const TensorEntry& tensor, uint64_t file_bytes);

// Bytes of the file from the piece's first to behind its last, gaps included. 0: it has none.
uint64_t SpanOf(const Piece& piece, Dtype dtype);

// Elements [begin, end) in row-major order as boxes of a tensor, in that order. At most
// two per dimension; end <= product(shape).
std::vector<Box> BoxesOfRange(const Shape& shape, uint64_t begin, uint64_t end);

// Goes through the bytes of a piece in the order of its file: runs of neighbours, and gaps that
// belong to others. Elements that share bytes come once for each stride that is not 0.
class PieceRuns {
 public:
  PieceRuns(const Piece& piece, Dtype dtype);

  bool done() const { return done_; }
  // Where the run's first byte lies in the file.
  uint64_t offset() const { return offset_; }
  // Length of each run.
  uint64_t bytes() const { return bytes_; }
  // Between neighbouring runs; 0 where there is only one, or they share bytes.
  uint64_t gap() const {
    return loops_.empty() || loops_.front().stride < bytes_ ? 0 : loops_.front().stride - bytes_;
  }
  void Next();

 private:
  struct Loop {
    uint64_t count = 0;
    uint64_t stride = 0;  // bytes
    uint64_t at = 0;
  };

  bool done_ = false;
  uint64_t offset_ = 0;
  uint64_t bytes_ = 0;
  std::vector<Loop> loops_;  // innermost first
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_PIECE_H_
