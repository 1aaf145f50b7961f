#include "common/wire/source_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/checked_math.h"
#include "common/source/piece.h"

namespace ckptd {
namespace {

// More than any framework allows.
constexpr uint32_t kMaxDimensions = 256;
// Each is looked up among the others.
constexpr size_t kMaxGroups = 1000;

// The only piece of a tensor is all of it, mostly, and nothing is said of its box.
bool IsWhole(const TensorEntry& tensor, const Piece& piece) {
  const auto is_zero = [](uint64_t offset) { return offset == 0; };
  return tensor.pieces.size() == 1 && piece.box.extents == tensor.shape &&
         std::all_of(piece.box.offsets.begin(), piece.box.offsets.end(), is_zero);
}

// Follows the columns of a table. Each step says what is wrong, or nothing.
class Reader {
 public:
  Reader(const v1::SourceTable& table, CheckpointIndex& index) : table_(table), index_(index) {}

  std::string Read();

 private:
  std::string CheckColumns() const;
  std::string ReadGroups();
  std::string ReadTensor(int number);
  std::string ReadPiece(TensorEntry& tensor, bool only);
  // The next `count` values of a column into `out`; false: it has fewer.
  template <typename Column>
  static bool Take(const Column& column, int& at, size_t count, Shape& out);

  const v1::SourceTable& table_;
  CheckpointIndex& index_;
  size_t pieces_before_ = 0;
  std::vector<uint32_t> groups_;  // of the table -> of the index
  int dim_ = 0;
  int piece_ = 0;
  int boxed_ = 0;
  int box_ = 0;
  int strided_ = 0;
  int stride_ = 0;
  int big_endian_ = 0;
  int negates_real_ = 0;
  int negates_imaginary_ = 0;
};

template <typename Column>
bool Reader::Take(const Column& column, int& at, size_t count, Shape& out) {
  if (count > static_cast<size_t>(column.size() - at)) return false;
  const auto begin = column.begin() + at;
  at += static_cast<int>(count);
  out.assign(begin, column.begin() + at);
  return true;
}

std::string Reader::CheckColumns() const {
  const int count = table_.names_size();
  const auto fits = [count](int size) { return size == 0 || size == count; };
  if (table_.dtypes_size() != count || table_.ranks_of_shape_size() != count ||
      !fits(table_.bytes_size()) || !fits(table_.piece_counts_size()) ||
      !fits(table_.kinds_size()) || !fits(table_.group_of_size()) ||
      table_.offsets_size() != table_.files_size() ||
      table_.alias_names_size() != table_.alias_targets_size()) {
    return "its columns differ in length";
  }
  if (static_cast<size_t>(table_.files_size()) > kMaxSourcePieces - pieces_before_) {
    return fmt::format("it has more than {} pieces", kMaxSourcePieces);
  }
  return {};
}

std::string Reader::ReadGroups() {
  for (const std::string& name : table_.groups()) {
    const auto known = std::find(index_.groups.begin(), index_.groups.end(), name);
    groups_.push_back(static_cast<uint32_t>(known - index_.groups.begin()));
    if (known == index_.groups.end()) index_.groups.push_back(name);
    if (index_.groups.size() > kMaxGroups) {
      return fmt::format("it has more than {} groups", kMaxGroups);
    }
  }
  return {};
}

std::string Reader::ReadPiece(TensorEntry& tensor, bool only) {
  Piece& piece = tensor.pieces.emplace_back();
  piece.file = table_.files(piece_);
  piece.offset = table_.offsets(piece_);
  const size_t dims = tensor.shape.size();
  const auto number = static_cast<uint32_t>(piece_++);
  if (boxed_ < table_.boxed_pieces_size() && table_.boxed_pieces(boxed_) == number) {
    ++boxed_;
    if (!Take(table_.boxes(), box_, dims, piece.box.offsets) ||
        !Take(table_.boxes(), box_, dims, piece.box.extents)) {
      return "a box is cut off";
    }
  } else if (only) {
    piece.box = {Shape(dims, 0), tensor.shape};
  } else {
    return "one of several pieces has no box";  // nor could a short message make long boxes
  }
  if (strided_ < table_.strided_pieces_size() && table_.strided_pieces(strided_) == number) {
    ++strided_;
    if (!Take(table_.strides(), stride_, dims, piece.strides)) return "strides are cut off";
  }
  if (piece.file >= index_.files.size()) return "it lies in a file that is not listed";
  const auto elements = CheckedElements(piece.box.extents);
  const auto bytes = elements.has_value() ? CheckedBytes(*elements, BitsOf(tensor.dtype))
                                          : std::nullopt;
  if (!bytes.has_value()) return "its bytes cannot be counted";
  piece.bytes = *bytes;
  return std::string(WhyImpossible(piece, tensor, index_.files[piece.file].bytes));
}

// Whether `numbers`, which ascend, have this one at `at`; then behind it.
template <typename Column>
bool IsNext(const Column& numbers, int number, int& at) {
  if (at == numbers.size() || numbers[at] != static_cast<uint32_t>(number)) return false;
  ++at;
  return true;
}

std::string Reader::ReadTensor(int number) {
  TensorEntry tensor;
  tensor.name = table_.names(number);
  const int dtype = table_.dtypes(number);
  const int kind = table_.kinds_size() == 0 ? 0 : static_cast<int>(table_.kinds(number));
  if (dtype <= 0 || dtype >= kDtypeCount) return "its dtype is not known";
  if (kind < 0 || kind > kEntryKindCount) return "its kind is not known";
  tensor.dtype = static_cast<Dtype>(dtype);
  tensor.kind = static_cast<EntryKind>(std::max(kind, 1) - 1);
  if (table_.group_of_size() > 0) {
    if (table_.group_of(number) >= groups_.size()) return "its group is not listed";
    tensor.group = groups_[table_.group_of(number)];
  }
  tensor.big_endian = IsNext(table_.big_endian(), number, big_endian_);
  tensor.negates_real = IsNext(table_.negates_real(), number, negates_real_);
  tensor.negates_imaginary = IsNext(table_.negates_imaginary(), number, negates_imaginary_);
  if (SignsOf(tensor) != Signs::kNone && !HasSigns(tensor.dtype)) return "its numbers have no sign";
  const uint32_t dims = table_.ranks_of_shape(number);
  if (dims > kMaxDimensions || !Take(table_.dims(), dim_, dims, tensor.shape)) {
    return "its shape is cut off";
  }
  const uint32_t pieces = table_.piece_counts_size() == 0 ? 1 : table_.piece_counts(number);
  if (pieces == 0 || pieces > static_cast<uint32_t>(table_.files_size() - piece_)) {
    return "its pieces are not listed";
  }
  tensor.pieces.reserve(pieces);
  for (uint32_t i = 0; i < pieces; ++i) {
    std::string wrong = ReadPiece(tensor, pieces == 1);
    if (!wrong.empty()) return wrong;
  }
  index_.tensors.push_back(std::move(tensor));
  return {};
}

std::string Reader::Read() {
  for (const TensorEntry& tensor : index_.tensors) pieces_before_ += tensor.pieces.size();
  if (std::string wrong = CheckColumns(); !wrong.empty()) return wrong;
  if (std::string wrong = ReadGroups(); !wrong.empty()) return wrong;
  index_.tensors.reserve(index_.tensors.size() + static_cast<size_t>(table_.names_size()));
  for (int i = 0; i < table_.names_size(); ++i) {
    const std::string wrong = ReadTensor(i);
    if (!wrong.empty()) return fmt::format("tensor {}: {}", table_.names(i), wrong);
  }
  const bool all = dim_ == table_.dims_size() && piece_ == table_.files_size() &&
                   boxed_ == table_.boxed_pieces_size() && box_ == table_.boxes_size() &&
                   strided_ == table_.strided_pieces_size() && stride_ == table_.strides_size() &&
                   big_endian_ == table_.big_endian_size() &&
                   negates_real_ == table_.negates_real_size() &&
                   negates_imaginary_ == table_.negates_imaginary_size();
  if (!all) return "it has more values than tensors";
  for (int i = 0; i < table_.alias_names_size(); ++i) {
    index_.aliases.emplace(table_.alias_names(i), table_.alias_targets(i));
  }
  return {};
}

}  // namespace

void SourceTableWriter::AddPiece(const TensorEntry& tensor, const Piece& piece) {
  const auto number = static_cast<uint32_t>(out_.files_size());
  out_.add_files(piece.file);
  out_.add_offsets(piece.offset);
  if (!IsWhole(tensor, piece)) {
    out_.add_boxed_pieces(number);
    out_.mutable_boxes()->Add(piece.box.offsets.begin(), piece.box.offsets.end());
    out_.mutable_boxes()->Add(piece.box.extents.begin(), piece.box.extents.end());
  }
  if (!piece.strides.empty()) {
    out_.add_strided_pieces(number);
    out_.mutable_strides()->Add(piece.strides.begin(), piece.strides.end());
  }
}

void SourceTableWriter::AddKind(EntryKind kind) {
  if (kind == EntryKind::kParameter && out_.kinds().empty()) return;
  while (out_.kinds_size() + 1 < out_.names_size()) out_.add_kinds(v1::ENTRY_KIND_PARAMETER);
  out_.add_kinds(static_cast<v1::EntryKind>(static_cast<int>(kind) + 1));
}

void SourceTableWriter::AddGroup(uint32_t group) {
  if (group == 0 && out_.group_of().empty()) return;
  const auto number = [this](uint32_t of_index) {
    const auto [at, added] = groups_.try_emplace(of_index, static_cast<uint32_t>(out_.groups_size()));
    if (added) out_.add_groups(index_.groups[of_index]);
    return at->second;
  };
  while (out_.group_of_size() + 1 < out_.names_size()) out_.add_group_of(number(0));
  out_.add_group_of(number(group));
}

void SourceTableWriter::Add(const TensorEntry& tensor) {
  const int before = out_.names_size();
  out_.add_names(tensor.name);
  out_.add_dtypes(static_cast<v1::Dtype>(tensor.dtype));
  out_.add_ranks_of_shape(static_cast<uint32_t>(tensor.shape.size()));
  out_.mutable_dims()->Add(tensor.shape.begin(), tensor.shape.end());
  for (const Piece& piece : tensor.pieces) AddPiece(tensor, piece);
  if (tensor.pieces.size() != 1 || !out_.piece_counts().empty()) {
    while (out_.piece_counts_size() < before) out_.add_piece_counts(1);
    out_.add_piece_counts(static_cast<uint32_t>(tensor.pieces.size()));
  }
  const auto number = static_cast<uint32_t>(before);
  if (tensor.big_endian) out_.add_big_endian(number);
  if (tensor.negates_real) out_.add_negates_real(number);
  if (tensor.negates_imaginary) out_.add_negates_imaginary(number);
  AddKind(tensor.kind);
  AddGroup(tensor.group);
}

void SourceTableWriter::AddAliases() {
  for (const auto& [alias, target] : index_.aliases) {
    out_.add_alias_names(alias);
    out_.add_alias_targets(target);
  }
}

size_t SourceTableWriter::CostOf(const TensorEntry& tensor) {
  constexpr size_t kNumber = 10;  // the longest one
  const size_t dims = tensor.shape.size();
  const size_t marks = size_t{tensor.big_endian} + tensor.negates_real + tensor.negates_imaginary;
  size_t cost = tensor.name.size() + kNumber * (dims + 2 + marks);
  for (const Piece& piece : tensor.pieces) {
    const size_t boxed = IsWhole(tensor, piece) ? 0 : 2 * dims + 1;
    cost += kNumber * (2 + boxed + (piece.strides.empty() ? 0 : dims + 1));
  }
  return cost;
}

std::string ReadSourceTable(const v1::SourceTable& table, CheckpointIndex& index) {
  return Reader(table, index).Read();
}

}  // namespace ckptd
