#include "common/export/tensor_stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/byte_swap.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/cast/cast.h"
#include "common/source/piece.h"
#include "common/source/registry.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

constexpr size_t kMostOpen = 64;
// A block is small enough for the caches of the processor to help, unless its file has another
// order: then each block goes through all of the file, and there should be few.
constexpr uint64_t kBlockBytes = uint64_t{4} << 20;
constexpr uint64_t kTurnedBlockBytes = uint64_t{128} << 20;

bool IsTurned(const Piece& piece) {
  uint64_t last = UINT64_MAX;
  for (size_t dim = 0; dim < piece.strides.size(); ++dim) {
    if (piece.box.extents[dim] == 1 || piece.strides[dim] == 0) continue;
    if (piece.strides[dim] > last) return true;
    last = piece.strides[dim];
  }
  return false;
}

bool Overlap(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    if (a.offsets[dim] >= b.offsets[dim] + b.extents[dim]) return false;
    if (b.offsets[dim] >= a.offsets[dim] + a.extents[dim]) return false;
  }
  return true;
}

// The pieces of a tensor whose elements are smaller than a byte, counted in bytes, as its shape is
// then. Empty: parts of it begin within a byte, or three bytes hold four elements.
std::vector<Piece> PackedPieces(const TensorEntry& tensor, Shape& shape) {
  std::vector<Piece> pieces = tensor.pieces;
  if (WholePiece(tensor) != nullptr) {
    shape = {pieces[0].bytes};
    pieces[0].box = {{0}, shape};
    return pieces;
  }
  const bool has_pairs = tensor.dtype == Dtype::kF4 && !shape.empty() && shape.back() % 2 == 0;
  if (!has_pairs) return {};
  for (Piece& piece : pieces) {
    uint64_t& offset = piece.box.offsets.back();
    uint64_t& extent = piece.box.extents.back();
    if (offset % 2 != 0 || extent % 2 != 0) return {};
    offset /= 2;
    extent /= 2;
  }
  shape.back() /= 2;
  return pieces;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ReadableObject>> OpenFiles::Get(uint32_t file) {
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [file](const auto& one) { return one.first == file; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
    return found->second;
  }
  const SourceFile& indexed = index_.files[file];
  CKPTD_ASSIGN_OR_RETURN(auto object, OpenIndexed(*StorageOf(indexed.path), indexed));
  open_.emplace_front(file, object);
  if (open_.size() > kMostOpen) open_.pop_back();
  return object;
}

const Piece* WholePiece(const TensorEntry& tensor) {
  if (tensor.pieces.size() != 1 || tensor.big_endian || SignsOf(tensor) != Signs::kNone) {
    return nullptr;
  }
  const Piece& piece = tensor.pieces.front();
  return piece.strides.empty() && piece.box.extents == tensor.shape ? &piece : nullptr;
}

TensorStream::TensorStream(OpenFiles& files, const TensorEntry& tensor, Dtype to,
                           uint64_t block_bytes)
    : files_(files),
      tensor_(tensor),
      to_(to),
      element_(std::max<size_t>(1, BitsOf(tensor.dtype) % 8 == 0 ? BitsOf(tensor.dtype) / 8 : 1)),
      shape_(tensor.shape) {
  if (BitsOf(tensor.dtype) % 8 != 0) packed_ = PackedPieces(tensor, shape_);
  done_ = ElementCount(shape_) == 0;
  const bool turned = std::any_of(tensor.pieces.begin(), tensor.pieces.end(), IsTurned);
  const uint64_t most = block_bytes > 0 ? block_bytes
                        : turned        ? kTurnedBlockBytes
                                        : kBlockBytes;
  uint64_t inner = element_;
  cut_ = shape_.size();
  while (cut_ > 0 && inner * shape_[cut_ - 1] <= most) inner *= shape_[--cut_];
  if (cut_ > 0) {
    --cut_;
    rows_ = std::max<uint64_t>(1, most / inner);
  } else if (!shape_.empty()) {
    rows_ = std::max<uint64_t>(1, shape_[0]);
  }
  at_.assign(shape_.size(), 0);
}

absl::Status TensorStream::CheckWhole() const {
  if (BitsOf(tensor_.dtype) % 8 == 0 || !packed_.empty()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("reading tensor {}: its elements of {} bits lie in several pieces "
                               "that share bytes; leave it out with --exclude",
                               Quoted(tensor_.name), BitsOf(tensor_.dtype)),
                   {{"tensor", tensor_.name}});
}

// Counts the blocks like digits: the dimension that is cut runs fastest.
Box TensorStream::NextBlock() {
  Box block{at_, shape_};
  if (shape_.empty()) {
    done_ = true;
    return block;
  }
  for (size_t dim = 0; dim < cut_; ++dim) block.extents[dim] = 1;
  block.extents[cut_] = std::min(rows_, shape_[cut_] - at_[cut_]);
  at_[cut_] += block.extents[cut_];
  for (size_t dim = cut_; at_[dim] == shape_[dim]; --dim) {
    at_[dim] = 0;
    if (dim == 0) {
      done_ = true;
      break;
    }
    ++at_[dim - 1];
  }
  return block;
}

absl::Status TensorStream::Fill(const Box& block) {
  block_.resize(static_cast<size_t>(ElementCount(block.extents)) * element_);
  for (const Piece& piece : packed_.empty() ? tensor_.pieces : packed_) {
    if (piece.bytes == 0 || !Overlap(piece.box, block)) continue;
    CKPTD_ASSIGN_OR_RETURN(const auto object, files_.Get(piece.file));
    CKPTD_RETURN_IF_ERROR(reader_.Read(*object, piece, element_, block, block_));
  }
  const size_t width = NumberBytesOf(tensor_.dtype);
  if (tensor_.big_endian) SwapBytes(width, block_.data(), block_.data(), block_.size());
  NegateNumbers(width, SignsOf(tensor_), block_.data(), block_.size());
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> TensorStream::Next() {
  if (done_) return std::span<const std::byte>();
  CKPTD_RETURN_IF_ERROR(CheckWhole());
  CKPTD_RETURN_IF_ERROR(Fill(NextBlock()));
  if (to_ == tensor_.dtype) return std::span<const std::byte>(block_);
  const size_t count = block_.size() / element_;
  cast_.resize(count * (BitsOf(to_) / 8));
  Cast(tensor_.dtype, to_, block_.data(), cast_.data(), count);
  return std::span<const std::byte>(cast_);
}

}  // namespace ckptd
