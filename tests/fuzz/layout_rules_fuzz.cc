// Feeds arbitrary text to the parser of layout rules, and what it accepts to the
// planner, over a source of a few tensors.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/layout/layout.h"
#include "common/layout/validate.h"
#include "common/plan/plan.h"
#include "tests/fuzz/plan_properties.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

constexpr uint32_t kMostRanks = 64;

void AddTensor(const std::string& name, Dtype dtype, const Shape& shape, CheckpointIndex& index) {
  const uint64_t bytes = ElementCount(shape) * BitsOf(dtype) / 8;
  const uint64_t offset = index.files[0].bytes;
  index.tensors.push_back({.name = name,
                           .dtype = dtype,
                           .shape = shape,
                           .pieces = {{0, offset, bytes, {Shape(shape.size()), shape}}}});
  index.files[0].bytes += bytes;
}

CheckpointIndex MakeIndex() {
  CheckpointIndex index;
  index.source = "/c";
  index.files.push_back({"/c/a.safetensors", 100, "2", "4", "1", 3});
  AddTensor("a.bias", Dtype::kF32, {7}, index);
  AddTensor("a.weight", Dtype::kBF16, {6, 4}, index);
  AddTensor("empty", Dtype::kF32, {0, 3}, index);
  AddTensor("experts.0", Dtype::kF4, {4, 2, 6}, index);
  AddTensor("scalar", Dtype::kI64, {}, index);
  AddTensor("u8", Dtype::kU8, {3, 5, 1}, index);
  index.aliases["tied"] = "a.weight";
  return index;
}

void PlanOne(const LayoutRules& rules, const CheckpointIndex& index, uint32_t rank) {
  const auto layout = rules.ForRank(index, rank);
  if (!layout.ok()) return RequireGoodError(layout.status());
  Require(layout->rank == rank && layout->world_size == rules.world_size(), "it is that rank's");
  const absl::Status sound = CheckRankLayout(*layout);
  Require(sound.ok(), "rules make sound layouts: " + MessageOf(sound));
  const auto plan = PlanRank(index, *layout, {});
  if (!plan.ok()) return RequireGoodError(plan.status());
  CheckPlan(index, *plan);
}

void FuzzRules(std::string_view text) {
  static const CheckpointIndex index = MakeIndex();
  const auto rules = LayoutRules::Parse(text);
  if (!rules.ok()) return RequireGoodError(rules.status());
  const uint32_t ranks = rules->world_size();
  Require(ranks > 0 && ranks <= LayoutRules::kMaxWorldSize, "a world has a size");
  Require(!rules->description().empty(), "a layout is described");
  RequireGoodError(rules->ForRank(index, ranks).status());
  if (ranks > kMostRanks) return;
  for (uint32_t rank = 0; rank < ranks; ++rank) PlanOne(*rules, index, rank);
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzRules({reinterpret_cast<const char*>(data), size});
  return 0;
}
