// The bytes of a tensor one after the other, in row-major order and little-endian, cast where that
// is wanted: what every writer writes.
#ifndef CKPTD_COMMON_EXPORT_TENSOR_STREAM_H_
#define CKPTD_COMMON_EXPORT_TENSOR_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/export/box_reader.h"
#include "common/source/index.h"
#include "common/source/storage.h"

namespace ckptd {

// Files of an index, opened when they are needed. Some stay open. Not thread-safe.
class OpenFiles {
 public:
  explicit OpenFiles(const CheckpointIndex& index) : index_(index) {}

  // Errors: those of OpenIndexed.
  absl::StatusOr<std::shared_ptr<const ReadableObject>> Get(uint32_t file);

 private:
  const CheckpointIndex& index_;
  std::list<std::pair<uint32_t, std::shared_ptr<const ReadableObject>>> open_;  // the newest first
};

// The piece that is all of a tensor as it is to be written, byte for byte; nullptr: there is none.
const Piece* WholePiece(const TensorEntry& tensor);

// The most memory that a stream takes, buffers of casts included.
inline constexpr size_t kMostStreamBytes = size_t{320} << 20;

// Not thread-safe. What it is made with outlives it.
class TensorStream {
 public:
  // `to` is the tensor's dtype, or one that it can be cast to. `block_bytes` of the file's dtype are
  // read at a time; 0: what suits how the tensor lies.
  TensorStream(OpenFiles& files, const TensorEntry& tensor, Dtype to, uint64_t block_bytes = 0);

  // The next bytes, valid until the next call; empty at the end. Blocking. Errors: those of reading,
  // naming the file; Unimplemented SOURCE_UNSUPPORTED for elements of less than a byte in several
  // pieces, but for whole pairs of F4.
  absl::StatusOr<std::span<const std::byte>> Next();

 private:
  absl::Status CheckWhole() const;
  Box NextBlock();
  absl::Status Fill(const Box& block);

  OpenFiles& files_;
  const TensorEntry& tensor_;
  const Dtype to_;
  const size_t element_;  // bytes; 1 where elements are smaller: they are counted as bytes then
  Shape shape_;                 // counted so
  std::vector<Piece> packed_;   // the pieces of elements that are smaller
  size_t cut_ = 0;     // blocks are full in the dimensions behind this one, and one index before it
  uint64_t rows_ = 1;  // of a block in that dimension
  bool done_ = false;
  Shape at_;  // of the next block
  BoxReader reader_;
  std::vector<std::byte> block_;
  std::vector<std::byte> cast_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_TENSOR_STREAM_H_
