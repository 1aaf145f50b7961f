// The bytes of a tensor in row-major order, put together element by element from its pieces.
#ifndef CKPTD_TESTS_TESTING_TENSOR_BYTES_H_
#define CKPTD_TESTS_TESTING_TENSOR_BYTES_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "common/source/piece.h"
#include "common/source/storage.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {

// Of whole bytes each element.
inline std::vector<std::byte> TensorBytes(const Storage& storage, const CheckpointIndex& index,
                                          const TensorEntry& tensor) {
  const size_t element = BitsOf(tensor.dtype) / 8;
  std::vector<std::byte> bytes(ElementCount(tensor.shape) * element);
  for (const Piece& piece : tensor.pieces) {
    std::vector<std::byte> span(SpanOf(piece, tensor.dtype));
    const auto object = storage.Open(index.files.at(piece.file).path);
    EXPECT_OK(object);
    if (!object.ok()) return bytes;
    EXPECT_OK((*object)->ReadAt(piece.offset, span));
    const Shape strides = StridesOf(piece);
    Shape at(tensor.shape.size(), 0);
    for (uint64_t left = ElementCount(piece.box.extents); left > 0; --left) {
      uint64_t from = 0;
      uint64_t to = 0;
      for (size_t dim = 0; dim < at.size(); ++dim) {
        from += at[dim] * strides[dim];
        to = to * tensor.shape[dim] + piece.box.offsets[dim] + at[dim];
      }
      std::memcpy(bytes.data() + to * element, span.data() + from * element, element);
      for (size_t dim = at.size(); dim-- > 0;) {
        if (++at[dim] < piece.box.extents[dim]) break;
        at[dim] = 0;
      }
    }
  }
  return bytes;
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_TENSOR_BYTES_H_
