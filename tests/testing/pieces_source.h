// A format that nobody has: tensors cut along a random grid, each cell a piece in one of two
// files, in row-major order, transposed, with gaps, expanded or as overlapping windows, in either
// byte order and with either sign; and the same tensors as one row-major piece each, read element
// by element, to compare with.
#ifndef CKPTD_TESTS_TESTING_PIECES_SOURCE_H_
#define CKPTD_TESTS_TESTING_PIECES_SOURCE_H_

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/byte_swap.h"
#include "common/source/index.h"

namespace ckptd {

class PiecesSource {
 public:
  PiecesSource(uint64_t seed, size_t tensors, uint64_t most_extent = 6)
      : most_extent_(most_extent), random_(seed) {
    index.source = "/p";
    plain.source = "/q";
    for (const char* path : {"/p/one", "/p/two"}) index.files.emplace_back().path = path;
    plain.files.emplace_back().path = "/q/plain";
    contents.resize(2);
    index.groups = plain.groups = {"", "model", "optimizer"};
    for (size_t i = 0; i < tensors; ++i) Add(fmt::format("t{:03}", i));
    for (size_t file = 0; file < 2; ++file) index.files[file].bytes = contents[file].size();
    plain.files[0].bytes = plain_content.size();
  }

  CheckpointIndex index;  // in pieces
  std::vector<std::vector<std::byte>> contents;
  CheckpointIndex plain;  // the same tensors and bytes
  std::vector<std::byte> plain_content;

  // The bytes of a tensor in row-major order.
  std::vector<std::byte> BytesOf(const std::string& name) const {
    const Piece& piece = plain.Find(name)->pieces.front();
    const auto begin = plain_content.begin() + static_cast<ptrdiff_t>(piece.offset);
    return {begin, begin + static_cast<ptrdiff_t>(piece.bytes)};
  }

  // Writes the files; both indices then say where and who they are. A source is the first of its
  // files, whose name is one of safetensors: no format there is would find anything in the folder.
  void Write(const std::string& folder) {
    for (size_t file = 0; file < 2; ++file) {
      index.files[file] = WriteFile(folder + (file == 0 ? "/one.safetensors" : "/two"), contents[file]);
    }
    plain.files[0] = WriteFile(folder + "/plain", plain_content);
    index.source = index.files[0].path;
    plain.source = plain.files[0].path;
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }

  static SourceFile WriteFile(const std::string& path, const std::vector<std::byte>& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    constexpr int64_t kNanosPerSecond = 1'000'000'000;
    struct stat info = {};
    ::stat(path.c_str(), &info);
    SourceFile file;
    file.path = path;
    file.bytes = bytes.size();
    file.object = std::to_string(info.st_ino);
    file.version = std::to_string(info.st_ctim.tv_sec * kNanosPerSecond + info.st_ctim.tv_nsec);
    file.host = std::to_string(info.st_dev);
    file.mtime_ns = info.st_mtim.tv_sec * kNanosPerSecond + info.st_mtim.tv_nsec;
    return file;
  }

  void Add(const std::string& name) {
    constexpr Dtype kDtypes[] = {Dtype::kU8,  Dtype::kBF16, Dtype::kF32,   Dtype::kF64,
                                 Dtype::kI64, Dtype::kC64,  Dtype::kBits16};
    TensorEntry tensor;
    tensor.name = name;
    tensor.dtype = kDtypes[Below(std::size(kDtypes))];
    tensor.kind = static_cast<EntryKind>(Below(kEntryKindCount));
    tensor.group = static_cast<uint32_t>(Below(3));
    tensor.big_endian = Below(3) == 0;
    tensor.negates_real = HasSigns(tensor.dtype) && Below(4) == 0;
    tensor.negates_imaginary = IsComplex(tensor.dtype) && Below(2) == 0;
    const uint64_t dims = Below(5);
    for (uint64_t dim = 0; dim < dims; ++dim) {
      tensor.shape.push_back(Below(20) == 0 ? 0 : 1 + Below(most_extent_));
    }
    AddCells(tensor, 0, {Shape(dims, 0), tensor.shape});
    std::shuffle(tensor.pieces.begin(), tensor.pieces.end(), random_);
    AddPlain(tensor);
    index.tensors.push_back(std::move(tensor));
  }

  // Cuts along `dim` and those after it.
  void AddCells(TensorEntry& tensor, size_t dim, const Box& box) {
    if (dim == tensor.shape.size()) return AddPiece(tensor, box);
    const uint64_t extent = tensor.shape[dim];
    const uint64_t cut = extent > 1 && Below(3) == 0 ? 1 + Below(extent - 1) : extent;
    Box cell = box;
    cell.extents[dim] = cut;
    AddCells(tensor, dim + 1, cell);
    if (cut == extent) return;
    cell.offsets[dim] = cut;
    cell.extents[dim] = extent - cut;
    AddCells(tensor, dim + 1, cell);
  }

  void AddPiece(TensorEntry& tensor, const Box& box) {
    const uint64_t element = BitsOf(tensor.dtype) / 8;
    Piece piece;
    piece.box = box;
    piece.bytes = ElementCount(box.extents) * element;
    piece.strides = RandomStrides(box.extents);
    piece.file = static_cast<uint32_t>(Below(2));
    const uint64_t span = SpanOfPiece(piece, element);
    std::vector<std::byte>& content = contents[piece.file];
    // Some views share the bytes of another one; casts need equal places of elements.
    if (!index.tensors.empty() && Below(4) == 0) {
      const TensorEntry& other = index.tensors[Below(index.tensors.size())];
      const Piece& shared = other.pieces.front();
      if (other.dtype == tensor.dtype && span <= SpanOfPiece(shared, element)) {
        piece.file = shared.file;
        piece.offset = shared.offset;
        tensor.pieces.push_back(std::move(piece));
        return;
      }
    }
    piece.offset = content.size();
    content.resize(content.size() + span + Below(3));
    for (uint64_t at = piece.offset; at < content.size(); ++at) {
      content[at] = static_cast<std::byte>(Below(256));
    }
    tensor.pieces.push_back(std::move(piece));
  }

  static uint64_t SpanOfPiece(const Piece& piece, uint64_t element) {
    const Shape& extents = piece.box.extents;
    const Shape strides = piece.strides.empty() ? RowMajor(extents) : piece.strides;
    uint64_t span = piece.bytes == 0 ? 0 : element;
    for (size_t dim = 0; span > 0 && dim < strides.size(); ++dim) {
      span += (extents[dim] - 1) * strides[dim] * element;
    }
    return span;
  }

  static Shape RowMajor(const Shape& extents) {
    Shape strides(extents.size(), 1);
    for (size_t dim = extents.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * extents[dim];
    return strides;
  }

  Shape RandomStrides(const Shape& extents) {
    Shape strides(extents.size(), 1);
    if (extents.empty() || Below(3) == 0) return {};
    std::vector<size_t> order(extents.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (Below(2) == 0) std::shuffle(order.begin(), order.end(), random_);
    const bool gaps = Below(3) == 0;
    uint64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      if (gaps && Below(3) == 0) stride += 1 + Below(3);
      strides[order[i]] = stride;
      stride *= std::max<uint64_t>(extents[order[i]], 1);
    }
    if (Below(5) == 0) strides[Below(strides.size())] = 0;
    if (Below(5) == 0) strides[Below(strides.size())] = 1;
    return strides;
  }

  void AddPlain(const TensorEntry& tensor) {
    const uint64_t element = BitsOf(tensor.dtype) / 8;
    TensorEntry entry = tensor;
    entry.big_endian = entry.negates_real = entry.negates_imaginary = false;
    const size_t number = tensor.big_endian ? NumberBytesOf(tensor.dtype) : 1;
    Piece piece;
    piece.box = {Shape(tensor.shape.size(), 0), tensor.shape};
    piece.bytes = ElementCount(tensor.shape) * element;
    piece.offset = plain_content.size();
    Shape at(tensor.shape.size(), 0);
    for (uint64_t left = ElementCount(tensor.shape); left > 0; --left) {
      const std::byte* const from = Element(tensor, at);
      plain_content.resize(plain_content.size() + element);
      std::byte* const to = plain_content.data() + plain_content.size() - element;
      SwapBytes(number, from, to, element);
      NegateNumbers(NumberBytesOf(tensor.dtype), SignsOf(tensor), to, element);
      for (size_t dim = at.size(); dim-- > 0;) {
        if (++at[dim] < tensor.shape[dim]) break;
        at[dim] = 0;
      }
    }
    entry.pieces = {std::move(piece)};
    plain.tensors.push_back(std::move(entry));
  }

  // The first byte of one element, as its piece says.
  const std::byte* Element(const TensorEntry& tensor, const Shape& at) const {
    for (const Piece& piece : tensor.pieces) {
      const Shape strides = piece.strides.empty() ? RowMajor(piece.box.extents) : piece.strides;
      uint64_t number = 0;
      bool inside = true;
      for (size_t dim = 0; dim < at.size(); ++dim) {
        const uint64_t into = at[dim] - piece.box.offsets[dim];
        inside = inside && at[dim] >= piece.box.offsets[dim] && into < piece.box.extents[dim];
        number += into * strides[dim];
      }
      if (!inside) continue;
      return contents[piece.file].data() + piece.offset + number * (BitsOf(tensor.dtype) / 8);
    }
    return nullptr;
  }

  const uint64_t most_extent_;
  std::mt19937_64 random_;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_PIECES_SOURCE_H_
