#include "common/export/copy_tensor.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/export/crc32.h"

namespace ckptd {
namespace {

// Between two looks at whether to stop.
constexpr uint64_t kStepBytes = uint64_t{64} << 20;

}  // namespace

absl::Status TensorCopier::Report(uint64_t bytes) const {
  if (on_written_ == nullptr || on_written_(bytes)) return absl::OkStatus();
  return absl::CancelledError("writing was stopped");
}

absl::Status TensorCopier::AppendWhole(const Piece& piece, OutputFile& out) {
  CKPTD_ASSIGN_OR_RETURN(const auto object, files_.Get(piece.file));
  for (uint64_t done = 0; done < piece.bytes;) {
    const uint64_t n = std::min(kStepBytes, piece.bytes - done);
    CKPTD_RETURN_IF_ERROR(out.AppendFrom(*object, piece.offset + done, n));
    CKPTD_RETURN_IF_ERROR(Report(n));
    done += n;
  }
  return absl::OkStatus();
}

absl::Status TensorCopier::Append(const OutTensor& tensor, OutputFile& out, uint32_t* crc) {
  const Piece* const whole = WholePiece(*tensor.from);
  if (whole != nullptr && tensor.dtype == tensor.from->dtype && crc == nullptr) {
    return AppendWhole(*whole, out);
  }
  TensorStream stream(files_, *tensor.from, tensor.dtype);
  uint32_t sum = 0;
  for (;;) {
    CKPTD_ASSIGN_OR_RETURN(const auto bytes, stream.Next());
    if (bytes.empty()) break;
    if (crc != nullptr) sum = Crc32(sum, bytes);
    CKPTD_RETURN_IF_ERROR(out.Append(bytes));
    CKPTD_RETURN_IF_ERROR(Report(bytes.size()));
  }
  if (crc != nullptr) *crc = sum;
  return absl::OkStatus();
}

}  // namespace ckptd
