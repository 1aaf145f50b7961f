// Feeds arbitrary text to the parser of views, what it accepts to a source of a few tensors, and what
// comes out to the planner and to the view's inverse.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/layout/layout.h"
#include "common/plan/plan.h"
#include "common/plan/view/view.h"
#include "common/source/piece.h"
#include "tests/fuzz/plan_properties.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

constexpr uint64_t kNowhere = ~uint64_t{0};

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
  AddTensor("a.k", Dtype::kF32, {4, 6}, index);
  AddTensor("a.q", Dtype::kF32, {8, 6}, index);
  AddTensor("a.v", Dtype::kF32, {4, 6}, index);
  AddTensor("e.0.w", Dtype::kBF16, {3, 5}, index);
  AddTensor("e.1.w", Dtype::kBF16, {3, 5}, index);
  AddTensor("empty", Dtype::kF32, {0, 3}, index);
  AddTensor("f4", Dtype::kF4, {4, 2, 6}, index);
  AddTensor("scalar", Dtype::kI64, {}, index);
  index.aliases["tied"] = "a.q";
  return index;
}

// Of each element the place in the file, in bits. Each has one, and no two pieces have the same.
std::vector<uint64_t> PlacesOf(const CheckpointIndex& index, const TensorEntry& tensor) {
  const uint32_t bits = BitsOf(tensor.dtype);
  std::vector<uint64_t> places(ElementCount(tensor.shape), kNowhere);
  for (const Piece& piece : tensor.pieces) {
    Require(piece.file < index.files.size(), "a piece lies in a file");
    const std::string_view why = WhyImpossible(piece, tensor, index.files[piece.file].bytes);
    Require(why.empty(), why);
    const Shape strides = StridesOf(piece);
    for (uint64_t i = 0; i < ElementCount(piece.box.extents); ++i) {
      uint64_t rest = i, to = 0, weight = 1, from = 0;
      for (size_t dim = tensor.shape.size(); dim-- > 0;) {
        const uint64_t at = rest % piece.box.extents[dim];
        rest /= piece.box.extents[dim];
        to += (piece.box.offsets[dim] + at) * weight;
        weight *= tensor.shape[dim];
        from += at * strides[dim];
      }
      Require(to < places.size() && places[to] == kNowhere, "an element has one source");
      places[to] = piece.offset * 8 + from * bits;
    }
  }
  for (const uint64_t place : places) Require(place != kNowhere, "an element has a source");
  return places;
}

using Contents = std::map<std::string, std::pair<Shape, std::vector<uint64_t>>>;
Contents ContentsOf(const CheckpointIndex& index) {
  Contents contents;
  for (const TensorEntry& tensor : index.tensors) {
    const bool added = contents.emplace(tensor.name, std::pair{tensor.shape, PlacesOf(index, tensor)}).second;
    Require(added, "a name is of one tensor");
  }
  for (const auto& [name, owner] : index.aliases) {
    Require(contents.contains(owner), "a further name is one of a tensor");
    const auto same = contents.at(owner);
    Require(contents.emplace(name, same).second, "a further name is of one tensor");
  }
  return contents;
}

void Plan(const CheckpointIndex& seen) {
  static const LayoutRules rules = LayoutRules::Parse("fsdp:2").value();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto layout = rules.ForRank(seen, rank);
    if (!layout.ok()) return RequireGoodError(layout.status());
    const auto plan = PlanRank(seen, *layout, {});
    if (!plan.ok()) return RequireGoodError(plan.status());
    CheckPlan(seen, *plan);
  }
}

void FuzzView(std::string_view text) {
  static const CheckpointIndex index = MakeIndex();
  if (text.starts_with(view::kInverse)) return;
  const auto seen = view::SeenThrough(text, index);
  if (!seen.ok()) return RequireGoodError(seen.status());
  const Contents contents = ContentsOf(*seen);
  Plan(*seen);
  const auto back = view::SeenThrough(std::string(view::kInverse) + std::string(text), *seen);
  if (!back.ok()) return RequireGoodError(back.status());
  const auto again = view::SeenThrough(text, *back);
  Require(again.ok() && ContentsOf(*again) == contents, "an inverse leads back");
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzView({reinterpret_cast<const char*>(data), size});
  return 0;
}
