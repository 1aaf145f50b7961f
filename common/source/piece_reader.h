// Reads the bytes of a piece, without those that lie between them.
#ifndef CKPTD_COMMON_SOURCE_PIECE_READER_H_
#define CKPTD_COMMON_SOURCE_PIECE_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/index.h"
#include "common/source/piece.h"
#include "common/source/storage/process_memory.h"

namespace ckptd {

// Not thread-safe. What it is made with outlives it.
class PieceReader {
 public:
  // `file` is the piece's, open under `path`. The piece holds together (WhyImpossible).
  PieceReader(const OpenedFile& file, const std::string& path, const Piece& piece, Dtype dtype)
      : file_(file),
        path_(path),
        end_(piece.offset + SpanOf(piece, dtype)),
        runs_(piece, dtype) {}

  // The next bytes of the piece, as PieceRuns goes through them: as many as `out` has room for, or
  // as are left; 0 at the end. Blocking. Errors: those of OpenedFile::Read.
  absl::StatusOr<size_t> Read(std::span<std::byte> out);

 private:
  absl::Status ReadPart(std::span<std::byte> out);

  const OpenedFile& file_;
  const std::string& path_;
  const uint64_t end_;  // of the piece, in the file
  PieceRuns runs_;
  uint64_t used_ = 0;  // of the run
  // What was read last where gaps are short, and where it begins.
  std::vector<std::byte> window_;
  uint64_t window_begin_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_PIECE_READER_H_
