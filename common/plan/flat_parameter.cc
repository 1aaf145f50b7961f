#include "common/plan/flat_parameter.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

absl::Status Mismatch(const std::string& name, const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                   fmt::format("planning flat parameter '{}': {}", name, why), {{"tensor", name}});
}

// Members of one flat parameter, in its order.
absl::Status CheckMembers(const FlatParameter& flat, const std::vector<const ResolvedTarget*>& members) {
  uint64_t reached = 0;
  for (const ResolvedTarget* member : members) {
    const auto elements = CheckedElements(member->source->shape);
    const auto end =
        elements.has_value() ? CheckedAdd(member->flat->begin, *elements) : std::nullopt;
    if (!end.has_value() || member->flat->begin < reached || *end > flat.elements) {
      return Mismatch(flat.name,
                      fmt::format("its member '{}' begins at element {} of {}, where it overlaps "
                                  "the one before or ends too late; state the places at which the "
                                  "trainer has its members",
                                  member->name, member->flat->begin, flat.elements));
    }
    if (member->dtype != members.front()->dtype) {
      return Mismatch(flat.name,
                      fmt::format("its member '{}' is {}, '{}' is {}; ask for one dtype",
                                  member->name, NameOf(member->dtype), members.front()->name,
                                  NameOf(members.front()->dtype)));
    }
    reached = *end;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FlatRun> RunOf(const Sharding& sharding, const std::vector<Mesh>& meshes,
                              uint64_t elements, uint32_t rank) {
  CKPTD_ASSIGN_OR_RETURN(const LocalGeometry geometry,
                         ResolveSharding(sharding, meshes, {elements}, rank));
  if (geometry.boxes.size() > 1) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                     fmt::format("a flat parameter is cut into {} runs on one rank; shard it by "
                                 "shard(0) or replicate",
                                 geometry.boxes.size()));
  }
  FlatRun run;
  run.padded_elements = geometry.padded_elements;
  if (geometry.boxes.empty()) return run;
  const Box& box = geometry.boxes.front().global;
  run.begin = box.offsets[0];
  run.end = run.begin + box.extents[0];
  return run;
}

absl::StatusOr<FlatTable> FlatTable::Make(const RankLayout& layout,
                                          const std::vector<ResolvedTarget>& wanted) {
  FlatTable table;
  table.layout_ = &layout;
  table.numbers_.resize(layout.flats.size());
  std::vector<std::vector<const ResolvedTarget*>> members(layout.flats.size());
  for (const ResolvedTarget& one : wanted) {
    if (one.flat.has_value()) members[one.flat->flat].push_back(&one);
  }
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].empty()) continue;  // the rank is not in its mesh
    std::sort(members[i].begin(), members[i].end(), [](const ResolvedTarget* a, const ResolvedTarget* b) {
      // One without elements begins where the next one does.
      return std::pair(a->flat->begin, CheckedElements(a->source->shape)) <
             std::pair(b->flat->begin, CheckedElements(b->source->shape));
    });
    CKPTD_RETURN_IF_ERROR(CheckMembers(layout.flats[i], members[i]));
    table.numbers_[i] = static_cast<uint32_t>(table.entries_.size());
    table.entries_.push_back({&layout.flats[i], members[i].front()->dtype});
  }
  return table;
}

absl::StatusOr<std::vector<PlannedFlat>> FlatTable::PlaceFor(uint32_t rank, uint64_t& end) const {
  std::vector<PlannedFlat> placed;
  end = 0;
  absl::StatusOr<FlatRun> run = FlatRun();
  const FlatParameter* last = nullptr;  // layers are alike, so their runs are
  for (const auto& [flat, dtype] : entries_) {
    if (last == nullptr || last->sharding != flat->sharding || last->elements != flat->elements) {
      run = RunOf(layout_->shardings[flat->sharding], layout_->meshes, flat->elements, rank);
    }
    last = flat;
    if (!run.ok()) {
      return WithFact(WithContext(run.status(), fmt::format("planning flat parameter '{}'",
                                                            flat->name)),
                      "tensor", flat->name);
    }
    const auto bytes = CheckedBytes(run->padded_elements, BitsOf(dtype));
    const auto whole = bytes.has_value() ? CheckedAdd(*bytes, kSlabAlignment - 1) : std::nullopt;
    const auto next = whole.has_value()
                          ? CheckedAdd(end, *whole / kSlabAlignment * kSlabAlignment)
                          : std::nullopt;
    if (!next.has_value()) {
      return Mismatch(flat->name,
                      fmt::format("{} elements of {} are no whole number of bytes below 2^64",
                                  run->padded_elements, NameOf(dtype)));
    }
    placed.push_back({flat->name, dtype, end, run->padded_elements});
    end = *next;
  }
  return placed;
}

}  // namespace ckptd
