// Measures planning on one thread: the layout and the plan of single ranks of a
// world, for a model of many tensors. Prints one JSON object.
//
//   plan_bench [TENSORS] [WORLD_SIZE] [RANKS]
//
// RANKS of the world, evenly spread, are planned; seconds_per_rank is their mean.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "common/layout/layout.h"
#include "common/layout/plan.h"

namespace ckptd {
namespace {

// Layers of a mixture of experts: many tensors, rows that do not divide evenly.
CheckpointIndex ManyTensors(size_t count) {
  constexpr uint64_t kRows = 2047;
  constexpr uint64_t kColumns = 64;
  CheckpointIndex index;
  index.source = "/models/many";
  index.files.resize(1);
  index.tensors.resize(count);
  for (size_t i = 0; i < count; ++i) {
    TensorEntry& tensor = index.tensors[i];
    tensor.name = fmt::format("model.layers.{:03}.mlp.experts.{:03}.up_proj.weight", i / 256, i % 256);
    tensor.dtype = Dtype::kBF16;
    tensor.shape = {kRows, kColumns};
    const uint64_t bytes = kRows * kColumns * 2;
    tensor.pieces.push_back({0, i * bytes, bytes, {{0, 0}, tensor.shape}});
    index.files[0].bytes += bytes;
  }
  return index;
}

int Run(size_t tensors, uint32_t world_size, uint32_t ranks) {
  const CheckpointIndex index = ManyTensors(tensors);
  const auto rules = LayoutRules::Parse(fmt::format("fsdp:{}", world_size));
  if (!rules.ok() || ranks == 0) return 2;
  const auto start = std::chrono::steady_clock::now();
  size_t planned = 0;
  for (uint32_t i = 0; i < ranks; ++i) {
    const auto rank = static_cast<uint32_t>(uint64_t{i} * world_size / ranks);
    const auto layout = rules->ForRank(index, rank);
    if (!layout.ok()) return 1;
    const auto plan = PlanRank(index, *layout, {});
    if (!plan.ok()) return 1;
    planned += plan->tensors.size();
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  fmt::print("{{\"tensors\": {}, \"world_size\": {}, \"ranks\": {}, \"planned\": {}, "
             "\"seconds_per_rank\": {:.6f}}}\n",
             tensors, world_size, ranks, planned, taken.count() / ranks);
  return 0;
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) {
  const auto number = [&](int at, unsigned long fallback) {
    return argc > at ? std::strtoul(argv[at], nullptr, 10) : fallback;
  };
  return ckptd::Run(number(1, 92'000), static_cast<uint32_t>(number(2, 1024)),
                    static_cast<uint32_t>(number(3, 16)));
}
