#include "common/source/ranks/merge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/piece.h"
#include "common/source/text.h"
#include "common/source/tiling.h"

namespace ckptd::ranks {
namespace {

// As FSDP1 calls the parameters that it makes of a module's.
constexpr std::string_view kFlat = "_flat_param";

bool IsFlat(const LocalTensor& tensor) {
  return tensor.name.ends_with(kFlat) && tensor.shape.size() == 1;
}

// Whether two meshes share no rank.
bool AreApart(const MeshRanks& a, const MeshRanks& b) {
  if (a == nullptr || b == nullptr) return false;
  auto in_a = a->begin();
  auto in_b = b->begin();
  while (in_a != a->end() && in_b != b->end()) {
    if (*in_a == *in_b) return false;
    ++(*in_a < *in_b ? in_a : in_b);
  }
  return true;
}

// "0, 1, 2, ..."
std::string RanksText(const std::vector<uint32_t>& ranks) {
  constexpr size_t kShown = 8;
  const bool has_more = ranks.size() > kShown;
  const auto end = has_more ? ranks.begin() + kShown : ranks.end();
  return fmt::format("{}{}", fmt::join(ranks.begin(), end, ", "), has_more ? ", ..." : "");
}

bool IsEmptyRun(const TensorEntry& entry) {
  return entry.shape.size() == 1 && entry.shape[0] == 0;
}

}  // namespace

absl::Status Merger::Invalid(const std::string& tensor, const std::string& why) const {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("merging the ranks' files of {}: tensor {}: {}; copy the files of all "
                               "ranks of one save there",
                               source_, Quoted(Escape(tensor)), why),
                   {{"file", last_file_}, {"tensor", tensor}});
}

absl::Status Merger::CountPieces(size_t more) {
  pieces_ += more;
  if (pieces_ <= kMaxSourcePieces) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("merging the ranks' files of {}: its tensors lie in more than {} "
                               "pieces; save it by torch.distributed.checkpoint",
                               source_, kMaxSourcePieces),
                   {{"file", last_file_}});
}

// Another rank has the same place in the mesh, or a replica, which placements call equal; or it is
// another mesh, whose ranks have another tensor by that name.
absl::Status Merger::CheckReplica(const Sharded& held, const LocalTensor& tensor,
                                  const LocalBox& box, uint64_t content) {
  const bool is_known = content != 0 && box.view.content != 0;
  if (is_known && content == box.view.content) return absl::OkStatus();
  if (is_known && box.box.extents == tensor.shape) taken_from_first_.insert(tensor.name);
  if (!AreApart(held.mesh, tensor.mesh)) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kDataLoss, reason::kSourceInvalid,
      fmt::format("merging the ranks' files of {}: ranks {} and ranks {} each have all of tensor "
                  "{}, with other values, as stages of a pipeline that use the same names; save "
                  "each stage by names of its own",
                  source_, RanksText(*held.mesh), RanksText(*tensor.mesh),
                  Quoted(Escape(tensor.name))),
      {{"file", last_file_}, {"tensor", tensor.name}});
}

absl::Status Merger::AddSharded(const LocalTensor& tensor, uint32_t file, bool big_endian) {
  const auto [at, is_new] = sharded_.try_emplace(tensor.name);
  TensorEntry& entry = at->second.entry;
  if (is_new) {
    entry.name = tensor.name;
    entry.shape = tensor.shape;
  }
  if (entry.shape != tensor.shape) {
    return Invalid(tensor.name, fmt::format("ranks have it in the shapes ({}) and ({})",
                                            fmt::join(entry.shape, ", "),
                                            fmt::join(tensor.shape, ", ")));
  }
  if (tensor.dtype == Dtype::kUnspecified) return absl::OkStatus();
  if (entry.dtype == Dtype::kUnspecified) {
    entry.dtype = tensor.dtype;
    entry.big_endian = big_endian && BitsOf(tensor.dtype) > 8;
  }
  const bool is_turned = big_endian && BitsOf(tensor.dtype) > 8;
  if (entry.dtype != tensor.dtype || entry.big_endian != is_turned) {
    return Invalid(tensor.name, fmt::format("ranks have it as {} and {}, or in several byte orders",
                                            NameOf(entry.dtype), NameOf(tensor.dtype)));
  }
  for (const LocalBox& local : tensor.boxes) {
    CKPTD_RETURN_IF_ERROR(AddBox(at->second, tensor, local, file));
  }
  return absl::OkStatus();
}

absl::Status Merger::AddBox(Sharded& sharded, const LocalTensor& tensor, const LocalBox& local,
                            uint32_t file) {
  const auto [held, is_first] = sharded.boxes.try_emplace(
      {local.box.offsets, local.box.extents}, local.view.content);
  if (!is_first) return CheckReplica(sharded, tensor, local, held->second);
  TensorEntry& entry = sharded.entry;
  if (entry.pieces.empty()) sharded.mesh = tensor.mesh;
  TensorEntry of_rank;
  torch::SetSigns(local.view, of_rank);
  if (entry.pieces.empty()) torch::SetSigns(local.view, entry);
  if (entry.negates_real != of_rank.negates_real ||
      entry.negates_imaginary != of_rank.negates_imaginary) {
    return Invalid(tensor.name, "some ranks have it with the other sign");
  }
  Piece piece = torch::PieceOf(local.view, file);
  piece.box = local.box;
  entry.pieces.push_back(std::move(piece));
  return CountPieces(1);
}

bool Merger::AddFragment(const TensorEntry& entry, const torch::Tensor& tensor,
                         const FlatShards& flats) {
  const auto flat = flats.find(tensor.storage);
  if (flat == flats.end() || entry.shape.size() != 1 || !tensor.strides.empty()) return false;
  const torch::Tensor& view = flat->second->view;
  const uint64_t element = BitsOf(tensor.dtype) / 8;
  if (element == 0) return false;
  const bool lies_in = tensor.dtype == view.dtype && tensor.offset >= view.offset &&
                       (tensor.offset - view.offset) % element == 0 &&
                       (tensor.offset - view.offset) / element + tensor.shape[0] <= view.shape[0];
  if (!lies_in) return false;
  const uint64_t begin = flat->second->box.offsets[0] + (tensor.offset - view.offset) / element;
  if (!IsEmptyRun(entry)) fragments_[entry.name].emplace(begin, entry);
  return !IsEmptyRun(entry);
}

absl::Status Merger::AddPlain(const torch::NamedTensor& tensor, uint32_t file, bool big_endian,
                              const FlatShards& flats) {
  TensorEntry entry;
  entry.name = tensor.name;
  entry.dtype = tensor.tensor.dtype;
  entry.kind = tensor.kind;
  entry.shape = tensor.tensor.shape;
  entry.big_endian = big_endian && BitsOf(entry.dtype) > 8;
  torch::SetSigns(tensor.tensor, entry);
  entry.pieces.push_back(torch::PieceOf(tensor.tensor, file));
  if (AddFragment(entry, tensor.tensor, flats)) return CountPieces(1);
  const bool is_empty = IsEmptyRun(entry);
  const auto [at, is_new] = plain_.try_emplace(tensor.name);
  Plain& plain = at->second;
  plain.all_empty = plain.all_empty && is_empty;
  if (is_new) {
    plain.entry = std::move(entry);
    plain.content = tensor.tensor.content;
    return CountPieces(1);
  }
  const bool is_equal = plain.content != 0 && plain.content == tensor.tensor.content;
  if (!is_equal && !is_empty) taken_from_first_.insert(tensor.name);
  plain.differs = plain.differs || plain.entry.shape != entry.shape ||
                  plain.entry.dtype != entry.dtype;
  return absl::OkStatus();
}

absl::Status Merger::Add(RankState state, uint32_t file) {
  last_file_ = state.file.path;
  ++ranks_;
  FlatShards flats;
  for (const LocalTensor& tensor : state.sharded) {
    CKPTD_RETURN_IF_ERROR(AddSharded(tensor, file, state.big_endian));
    if (!IsFlat(tensor)) continue;
    if (ranks_ == 1) flat_names_.push_back(tensor.name);
    for (const LocalBox& box : tensor.boxes) {
      if (box.view.strides.empty()) flats.emplace(box.view.storage, &box);
    }
  }
  for (const torch::NamedTensor& tensor : state.plain.tensors) {
    CKPTD_RETURN_IF_ERROR(AddPlain(tensor, file, state.big_endian, flats));
  }
  // Each rank says the same, or speaks of itself below a name of its own.
  out_.index.values.merge(state.plain.values);
  out_.index.opaque.merge(state.plain.opaque);
  out_.index.aliases.merge(state.plain.aliases);
  for (const auto& [name, why] : state.plain.refused) {
    const bool is_new = out_.index.opaque.emplace(name, "torch.Tensor").second;
    if (is_new) {
      out_.remarks.push_back(fmt::format("left out {} of {}: {}", Quoted(Escape(name)), last_file_,
                                         MessageOf(why)));
    }
  }
  return absl::OkStatus();
}

absl::Status Merger::FinishSharded() {
  for (auto& [name, sharded] : sharded_) {
    TensorEntry& entry = sharded.entry;
    if (plain_.contains(name) || fragments_.contains(name)) {
      return Invalid(name, "some ranks have a part of it, others all of it");
    }
    if (entry.dtype == Dtype::kUnspecified) return Invalid(name, "no rank has a part of it");
    std::vector<Box> boxes;
    for (const Piece& piece : entry.pieces) boxes.push_back(piece.box);
    if (const std::string why = WhyNoTiling(entry.shape, boxes); !why.empty()) {
      return Invalid(name, why);
    }
    if (entry.pieces.empty()) {  // it has no elements
      entry.pieces.emplace_back().box = {Shape(entry.shape.size(), 0), entry.shape};
    }
    out_.index.tensors.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

absl::Status Merger::FinishFragments() {
  for (auto& [name, runs] : fragments_) {
    const auto plain = plain_.find(name);
    if (plain != plain_.end() && !plain->second.all_empty) {
      return Invalid(name, "some ranks have a run of it, others all of it");
    }
    if (plain != plain_.end()) plain_.erase(plain);
    TensorEntry entry = runs.begin()->second;
    entry.pieces.clear();
    uint64_t at = runs.begin()->first;
    const uint64_t begin = at;
    for (auto& [first, run] : runs) {
      if (first != at || run.dtype != entry.dtype) return Invalid(name, "its runs leave a gap");
      Piece& piece = entry.pieces.emplace_back(run.pieces.front());
      piece.box.offsets = {at - begin};
      at += run.shape[0];
    }
    entry.shape = {at - begin};
    out_.index.tensors.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

absl::Status Merger::FinishPlain() {
  for (auto& [name, plain] : plain_) {
    if (plain.differs) return Invalid(name, "it is no part of a larger one, and differs by rank");
    out_.index.tensors.push_back(std::move(plain.entry));
  }
  return absl::OkStatus();
}

absl::Status Merger::CheckTogether() const {
  if (own_names_ || ranks_ < 2 || !sharded_.empty()) return absl::OkStatus();
  const auto large = std::find_if(plain_.begin(), plain_.end(), [](const auto& plain) {
    return !plain.second.entry.shape.empty();
  });
  if (large == plain_.end()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("merging the ranks' files of {}: their tensors, such as {}, are no "
                               "DTensors and do not say how they belong together; name one file, or "
                               "save by torch.distributed.checkpoint",
                               source_, Quoted(Escape(large->first))),
                   {{"file", last_file_}, {"tensor", large->first}});
}

// Drops aliases that clash, as ranks may use one name for different things.
void Merger::DropStrayAliases() {
  std::set<std::string> names;
  for (const TensorEntry& tensor : out_.index.tensors) names.insert(tensor.name);
  std::erase_if(out_.index.aliases, [&names](const auto& alias) {
    return names.contains(alias.first) || !names.contains(alias.second);
  });
}

void Merger::RemarkOnFirst() {
  if (taken_from_first_.empty()) return;
  out_.remarks.push_back(fmt::format(
      "several ranks have tensors whole that may differ, and that are taken from the first file "
      "that has them: {}",
      Listed({taken_from_first_.begin(), taken_from_first_.end()})));
}

absl::StatusOr<OpenedCheckpoint> Merger::Finish() {
  CKPTD_RETURN_IF_ERROR(CheckTogether());
  const size_t runs = fragments_.size();
  CKPTD_RETURN_IF_ERROR(FinishSharded());
  CKPTD_RETURN_IF_ERROR(FinishFragments());
  CKPTD_RETURN_IF_ERROR(FinishPlain());
  DropStrayAliases();
  RemarkOnFirst();
  if (!flat_names_.empty()) {
    out_.remarks.push_back(fmt::format(
        "{} flat parameters of FSDP1 (LOCAL_STATE_DICT) have no shapes of their members: {} are of "
        "one dimension, with padding{}",
        flat_names_.size(), Listed(flat_names_),
        runs > 0 ? fmt::format(", and so are {} parameters by their own names, without it", runs)
                 : ""));
  }
  return std::move(out_);
}

}  // namespace ckptd::ranks
