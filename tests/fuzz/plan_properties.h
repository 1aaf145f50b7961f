// What every plan keeps, whatever it was made from.
#ifndef CKPTD_TESTS_FUZZ_PLAN_PROPERTIES_H_
#define CKPTD_TESTS_FUZZ_PLAN_PROPERTIES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/plan.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {

// Calls visit(file offset, slab offset, bytes in the slab) for every run of a copy.
template <typename Visit>
void ForEachRun(const CopyOp& op, const Visit& visit) {
  const uint64_t bytes =
      op.casts() ? op.run_bytes / (BitsOf(op.from) / 8) * (BitsOf(op.to) / 8) : op.run_bytes;
  for (uint64_t run = 0; run < op.runs(); ++run) {
    uint64_t rest = run;
    uint64_t file = op.file_offset;
    uint64_t slab = op.slab_offset;
    for (uint32_t dim = op.dims; dim-- > 0;) {
      file += rest % op.count[dim] * op.file_stride[dim];
      slab += rest % op.count[dim] * op.slab_stride[dim];
      rest /= op.count[dim];
    }
    visit(file, slab, bytes);
  }
}

// The flat parameter in which a tensor lies; nullptr when it is in none.
inline const PlannedFlat* FlatOf(const RankPlan& plan, const PlannedTensor& tensor) {
  for (const PlannedFlat& flat : plan.flats) {
    const uint64_t bytes = flat.elements / 8 * BitsOf(flat.dtype) +
                           flat.elements % 8 * BitsOf(flat.dtype) / 8;
    const bool inside = tensor.offset >= flat.offset && tensor.offset - flat.offset <= bytes &&
                        tensor.bytes <= bytes - (tensor.offset - flat.offset);
    if (inside && tensor.dtype == flat.dtype) return &flat;
  }
  return nullptr;
}

inline void CheckFlats(const RankPlan& plan) {
  uint64_t end = 0;
  for (const PlannedFlat& flat : plan.flats) {
    Require(flat.offset >= end && flat.offset % kSlabAlignment == 0, "flat parameters lie apart");
    end = flat.offset + flat.elements / 8 * BitsOf(flat.dtype) +
          flat.elements % 8 * BitsOf(flat.dtype) / 8;
    Require(end >= flat.offset && end <= plan.slab_bytes, "flat parameters lie in the slab");
  }
}

inline void CheckTensors(const RankPlan& plan) {
  std::vector<const PlannedTensor*> order;
  uint64_t tensor_bytes = 0;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& tensor = plan.tensors[i];
    Require(i == 0 || plan.tensors[i - 1].name < tensor.name, "tensors are sorted, once each");
    Require(tensor.offset % kSlabAlignment == 0 || FlatOf(plan, tensor) != nullptr,
            "tensors are aligned, or members");
    Require(tensor.bytes <= tensor.padded_bytes, "padding comes on top");
    tensor_bytes += tensor.bytes;
    order.push_back(&tensor);
  }
  Require(tensor_bytes == plan.tensor_bytes, "bytes add up");
  std::sort(order.begin(), order.end(), [](const PlannedTensor* a, const PlannedTensor* b) {
    return std::pair(a->offset, a->padded_bytes) < std::pair(b->offset, b->padded_bytes);
  });
  uint64_t end = 0;
  for (const PlannedTensor* tensor : order) {
    Require(tensor->offset >= end, "tensors do not overlap");
    Require(tensor->offset <= plan.slab_bytes &&
                tensor->padded_bytes <= plan.slab_bytes - tensor->offset,
            "tensors lie in the slab");
    end = tensor->offset + tensor->padded_bytes;
  }
}

// Each byte of each tensor is written once, and nothing else is; looked at run by
// run where there are not too many.
inline void CheckCoverage(const RankPlan& plan) {
  constexpr uint64_t kSmallSlab = 64 << 10;
  constexpr uint64_t kFewRuns = 4096;
  uint64_t written = 0;
  uint64_t runs = 0;
  for (const CopyOp& op : plan.ops) {
    written += op.target_bytes();
    runs += op.runs();
  }
  Require(written == plan.tensor_bytes, "copies write the tensors' bytes");
  if (plan.slab_bytes > kSmallSlab && runs > kFewRuns) return;
  std::vector<std::pair<uint64_t, uint64_t>> places;  // begin and end, in the slab
  places.reserve(runs);
  for (const CopyOp& op : plan.ops) {
    const PlannedTensor& tensor = plan.tensors[op.tensor];
    ForEachRun(op, [&](uint64_t file, uint64_t slab, uint64_t bytes) {
      Require(file + op.run_bytes <= op.file_end(), "runs end where the copy ends");
      Require(slab >= tensor.offset && slab + bytes <= tensor.offset + tensor.bytes,
              "runs stay in their tensor");
      places.emplace_back(slab, slab + bytes);
    });
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) {
    Require(places[i - 1].second <= places[i].first, "no byte is written twice");
  }
}

inline void CheckPlan(const CheckpointIndex& index, const RankPlan& plan) {
  CheckFlats(plan);
  CheckTensors(plan);
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const CopyOp& op = plan.ops[i];
    Require(op.tensor < plan.tensors.size() && op.file < index.files.size(), "copies name what is");
    Require(op.dims <= CopyOp::kMaxDims && op.run_bytes > 0, "copies have a form");
    Require(op.file_end() <= index.files[op.file].bytes, "copies read what is in the file");
    Require(i == 0 || std::pair(plan.ops[i - 1].file, plan.ops[i - 1].file_offset) <=
                          std::pair(op.file, op.file_offset),
            "copies are in file order");
  }
  CheckCoverage(plan);
}

}  // namespace ckptd::fuzz

#endif  // CKPTD_TESTS_FUZZ_PLAN_PROPERTIES_H_
