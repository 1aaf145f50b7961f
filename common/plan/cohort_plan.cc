#include "common/plan/cohort_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/resolved_target.h"
#include "common/layout/validate.h"
#include "common/plan/plan_digest.h"

namespace ckptd {
namespace {

absl::Status TooManyBytes() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                   "the bytes of the shard do not fit 64 bits");
}

// Leaves out what lies on meshes without the rank: it lacks those tensors.
void KeepPresent(const RankLayout& layout, std::vector<ResolvedTarget>& wanted) {
  std::vector<bool> member;
  for (const Mesh& mesh : layout.meshes) {
    member.push_back(CoordinatesOf(mesh, layout.rank).has_value());
  }
  if (std::all_of(member.begin(), member.end(), [](bool in) { return in; })) return;
  const auto absent = [&member](const ResolvedTarget& one) {
    return one.sharding->mesh.has_value() && !member[*one.sharding->mesh];
  };
  wanted.erase(std::remove_if(wanted.begin(), wanted.end(), absent), wanted.end());
}

// Adds `count` tensors that take `bytes` of the slab each. False when 64 bits end.
bool AddTo(uint64_t& total, uint64_t count, uint64_t bytes) {
  const auto product = CheckedMultiply(count, bytes);
  const auto sum = product.has_value() ? CheckedAdd(total, *product) : std::nullopt;
  if (sum.has_value()) total = *sum;
  return sum.has_value();
}

// What a tensor takes of the slab: the next one begins aligned. Members lie in what their
// flat parameter has. nullopt when 64 bits end.
std::optional<uint64_t> SlotOf(const TensorKind& kind, const Part& part) {
  if (kind.flat.has_value()) return 0;
  const auto end = CheckedAdd(part.padded_bytes, kSlabAlignment - 1);
  if (!end.has_value()) return std::nullopt;
  return *end / kSlabAlignment * kSlabAlignment;
}

void SortOps(std::vector<CopyOp>& ops) {
  const auto before = [](const CopyOp& a, const CopyOp& b) {
    return std::tie(a.file, a.file_offset, a.slab_offset) <
           std::tie(b.file, b.file_offset, b.slab_offset);
  };
  if (!std::is_sorted(ops.begin(), ops.end(), before)) std::sort(ops.begin(), ops.end(), before);
}

}  // namespace

absl::StatusOr<CohortPlan> CohortPlan::Make(const CheckpointIndex& index,
                                            std::shared_ptr<const RankLayout> layout,
                                            const DtypePolicy& policy) {
  CKPTD_RETURN_IF_ERROR(CheckRankLayout(*layout));
  CohortPlan plan;
  plan.layout_ = std::move(layout);
  CKPTD_ASSIGN_OR_RETURN(plan.wanted_, ResolveTargets(index, *plan.layout_, policy));
  KeepPresent(*plan.layout_, plan.wanted_);
  CKPTD_ASSIGN_OR_RETURN(plan.flats_, FlatTable::Make(*plan.layout_, plan.wanted_));
  CKPTD_RETURN_IF_ERROR(plan.SortIntoKinds(index));
  plan.DigestTensors();
  return plan;
}

absl::Status CohortPlan::SortIntoKinds(const CheckpointIndex& index) {
  items_.reserve(wanted_.size());
  for (uint32_t i = 0; i < wanted_.size(); ++i) {
    items_.push_back({wanted_[i].source, PlaceOf(*wanted_[i].source), 0, 0, i});
  }
  const auto before = [](const Item& a, const Item& b) {
    return std::tie(a.place, a.name_order) < std::tie(b.place, b.name_order);
  };
  if (!std::is_sorted(items_.begin(), items_.end(), before)) {
    std::sort(items_.begin(), items_.end(), before);
  }
  KindTable table(index, *layout_);
  places_.reserve(items_.size());
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    item.first_place = static_cast<uint32_t>(places_.size());
    const ResolvedTarget& wanted = wanted_[item.name_order];
    const auto kind = table.Add(wanted, places_);
    if (!kind.ok()) {
      return WithFact(WithContext(kind.status(), fmt::format("planning tensor '{}' for rank {}",
                                                             wanted.name, layout_->rank)),
                      "tensor", wanted.name);
    }
    item.kind = *kind;
    if (*kind == kind_sizes_.size()) {
      kind_sizes_.push_back(0);
      kind_firsts_.push_back(static_cast<uint32_t>(i));
    }
    ++kind_sizes_[*kind];
  }
  kinds_ = std::move(table).Take();
  return absl::OkStatus();
}

// With what each rank gets of each kind this says everything: slab offsets follow
// from the order.
void CohortPlan::DigestTensors() {
  constexpr size_t kTypicalTensor = 160;
  CanonicalHasher out;
  out.Reserve(items_.size() * kTypicalTensor);
  out.Number(items_.size());
  for (const Item& item : items_) {
    const ResolvedTarget& wanted = wanted_[item.name_order];
    out.Text(wanted.name);
    out.Number(wanted.aliases.size());
    for (const std::string& alias : wanted.aliases) out.Text(alias);
    out.Number(item.kind);
    if (wanted.flat.has_value()) out.Number(flats_.NumberOf(*wanted.flat));
    for (size_t piece = 0; piece < kinds_[item.kind].pieces.size(); ++piece) {
      out.Number(PlacesOf(item)[piece].file);
      out.Number(PlacesOf(item)[piece].offset);
    }
  }
  digest_ = out.Digest();
}

absl::Status CohortPlan::AttributeToTensor(const absl::Status& status, uint32_t kind,
                                           uint32_t rank) const {
  const std::string& name = wanted_[items_[kind_firsts_[kind]].name_order].name;
  return WithFact(
      WithContext(status, fmt::format("planning tensor '{}' for rank {}", name, rank)), "tensor",
      name);
}

absl::StatusOr<PlannedRank> CohortPlan::Plan(uint32_t rank, const PlannedRank* like) const {
  PlannedRank out;
  out.rank = rank;
  out.tensors = items_.size();
  std::vector<KindShare> shares;
  shares.reserve(kinds_.size());
  CanonicalHasher spelling;
  CKPTD_ASSIGN_OR_RETURN(const auto flats, flats_.PlaceFor(rank, out.slab_bytes));
  Spell(flats, spelling);
  for (uint32_t k = 0; k < kinds_.size(); ++k) {
    const auto part = PartOf(kinds_[k], layout_->meshes, rank);
    if (!part.ok()) return AttributeToTensor(part.status(), k, rank);
    const auto slot = SlotOf(kinds_[k], *part);
    const KindShare share{slot.value_or(0), part->copies.size()};
    shares.push_back(share);
    if (!slot.has_value() || !AddTo(out.slab_bytes, kind_sizes_[k], share.slot_bytes)) {
      return AttributeToTensor(TooManyBytes(), k, rank);
    }
    out.tensor_bytes += kind_sizes_[k] * part->bytes;
    out.kind_copies += share.copies;
    if (!AddTo(out.copies, kind_sizes_[k], share.copies) || out.copies > kMaxCopies) {
      return AttributeToTensor(TooManyCopies(), k, rank);
    }
    out.casts_down = out.casts_down || (!part->copies.empty() &&
                                        BitsOf(kinds_[k].to) < BitsOf(kinds_[k].from));
    Spell(kinds_[k], *part, spelling);
  }
  CanonicalHasher content = spelling;  // nothing in it names the rank yet
  content.Number(out.slab_bytes);
  content.Number(digest_);
  out.content = content.Digest();
  spelling.Number(rank);
  spelling.Number(out.slab_bytes);
  spelling.Number(digest_);
  out.digest = spelling.Digest();
  const bool shared = like != nullptr && *like->shares == shares;
  out.shares = shared ? like->shares
                      : std::make_shared<const std::vector<KindShare>>(std::move(shares));
  return out;
}

CohortPlan::Range CohortPlan::RangeOf(size_t first, size_t last) const {
  Range range;
  range.first = first;
  range.last = last;
  range.before.resize(kinds_.size());
  for (size_t i = 0; i < first; ++i) ++range.before[items_[i].kind];
  for (size_t i = first; i < last; ++i) range.numbers.push_back(items_[i].name_order);
  std::vector<uint32_t> by_name(last - first);
  std::iota(by_name.begin(), by_name.end(), 0u);
  const auto before = [&range](uint32_t a, uint32_t b) {
    return range.numbers[a] < range.numbers[b];
  };
  if (!std::is_sorted(range.numbers.begin(), range.numbers.end())) {
    std::sort(by_name.begin(), by_name.end(), before);
    std::sort(range.numbers.begin(), range.numbers.end());
  }
  range.position.resize(by_name.size());
  for (uint32_t i = 0; i < by_name.size(); ++i) range.position[by_name[i]] = i;
  return range;
}

absl::StatusOr<RankPlan> CohortPlan::Slice(const PlannedRank& rank, const Range& range) const {
  RankPlan plan;
  plan.rank = rank.rank;
  plan.slab_bytes = rank.slab_bytes;
  plan.digest = rank.digest;
  const std::vector<KindShare>& shares = *rank.shares;
  uint64_t offset = 0;
  CKPTD_ASSIGN_OR_RETURN(plan.flats, flats_.PlaceFor(rank.rank, offset));
  for (size_t k = 0; k < kinds_.size(); ++k) offset += range.before[k] * shares[k].slot_bytes;
  std::vector<std::optional<Part>> parts(kinds_.size());
  plan.tensors.resize(range.last - range.first);
  plan.ops.reserve(plan.tensors.size());
  for (size_t i = range.first; i < range.last; ++i) {
    const Item& item = items_[i];
    std::optional<Part>& part = parts[item.kind];
    if (!part.has_value()) {
      CKPTD_ASSIGN_OR_RETURN(part, PartOf(kinds_[item.kind], layout_->meshes, rank.rank));
    }
    const ResolvedTarget& wanted = wanted_[item.name_order];
    const uint64_t begin =
        !wanted.flat.has_value()
            ? offset
            : plan.flats[flats_.NumberOf(*wanted.flat)].offset + part->flat_offset;
    const uint32_t at = range.position[i - range.first];
    for (CopyOp copy : part->copies) {
      const FilePlace& place = PlacesOf(item)[copy.file];
      copy.file = place.file;
      copy.tensor = at;
      copy.file_offset += place.offset;
      copy.slab_offset += begin;
      plan.ops.push_back(copy);
    }
    plan.tensors[at] = {wanted.name, wanted.aliases, wanted.dtype,      part->shape,
                        begin,       part->bytes,    part->padded_bytes};
    plan.tensor_bytes += part->bytes;
    offset += shares[item.kind].slot_bytes;
  }
  SortOps(plan.ops);
  return plan;
}

}  // namespace ckptd
