// Copies the bytes of tensors into a file that is being written.
#ifndef CKPTD_COMMON_EXPORT_COPY_TENSOR_H_
#define CKPTD_COMMON_EXPORT_COPY_TENSOR_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/export/content.h"
#include "common/export/output_file.h"
#include "common/export/tensor_stream.h"

namespace ckptd {

// Is told of each further number of bytes that was written. False: stop.
using OnWritten = std::function<bool(uint64_t bytes)>;

// Not thread-safe.
class TensorCopier {
 public:
  // `on_written` may be null.
  TensorCopier(const CheckpointIndex& index, OnWritten on_written)
      : files_(index), on_written_(std::move(on_written)) {}

  // Appends all bytes of a tensor, `tensor.bytes` in number. `crc`, unless null, becomes the CRC-32
  // of them. Blocking. Errors: those of TensorStream and OutputFile; Cancelled.
  absl::Status Append(const OutTensor& tensor, OutputFile& out, uint32_t* crc);

 private:
  absl::Status AppendWhole(const Piece& piece, OutputFile& out);
  absl::Status Report(uint64_t bytes) const;

  OpenFiles files_;
  const OnWritten on_written_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_COPY_TENSOR_H_
