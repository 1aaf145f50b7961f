// A source in memory for planner tests: tensors of U32 elements whose values
// say where they come from, and an interpreter that carries a plan out.
#ifndef CKPTD_TESTS_TESTING_FAKE_SOURCE_H_
#define CKPTD_TESTS_TESTING_FAKE_SOURCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/plan.h"
#include "common/source/index.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {

inline Box WholeOf(const Shape& shape) { return Box{Shape(shape.size(), 0), shape}; }

// One file that grows tensor by tensor. Not thread-safe.
class FakeSource {
 public:
  FakeSource() {
    index_.source = "/data/fake";
    index_.files.resize(1);
    index_.files[0].path = "/data/fake/model.safetensors";
  }

  // Appends a tensor in one piece. Element i of a U32 tensor is i.
  void Add(const std::string& name, const Shape& shape, Dtype dtype = Dtype::kU32) {
    AddInPieces(name, shape, {WholeOf(shape)}, dtype);
  }

  // Appends a tensor whose boxes lie one after the other. Elements of a U32
  // tensor are their row-major number in the whole tensor.
  void AddInPieces(const std::string& name, const Shape& shape, const std::vector<Box>& boxes,
                   Dtype dtype = Dtype::kU32) {
    TensorEntry entry;
    entry.name = name;
    entry.dtype = dtype;
    entry.shape = shape;
    for (const Box& box : boxes) {
      Piece piece;
      piece.offset = bytes_.size();
      piece.box = box;
      piece.bytes = ElementCount(box.extents) * BitsOf(dtype) / 8;
      AppendValues(shape, box, dtype);
      entry.pieces.push_back(std::move(piece));
    }
    index_.files[0].bytes = bytes_.size();
    const auto at = std::lower_bound(
        index_.tensors.begin(), index_.tensors.end(), name,
        [](const TensorEntry& tensor, const std::string& n) { return tensor.name < n; });
    index_.tensors.insert(at, std::move(entry));
  }

  CheckpointIndex& index() { return index_; }

  // The local elements of a planned U32 tensor.
  std::vector<uint32_t> Load(const RankPlan& plan, const std::string& name) const {
    std::vector<std::byte> slab(plan.slab_bytes, std::byte{0xEE});
    for (const CopyOp& op : plan.ops) Copy(op, slab, op.file_offset, op.slab_offset, 0);
    for (const PlannedTensor& tensor : plan.tensors) {
      if (tensor.name != name) continue;
      std::vector<uint32_t> values(tensor.bytes / sizeof(uint32_t));
      if (!values.empty()) std::memcpy(values.data(), slab.data() + tensor.offset, tensor.bytes);
      return values;
    }
    return {};
  }

 private:
  void AppendValues(const Shape& shape, const Box& box, Dtype dtype) {
    if (dtype != Dtype::kU32) {
      bytes_.resize(bytes_.size() + ElementCount(box.extents) * BitsOf(dtype) / 8);
      return;
    }
    Shape at(shape.size(), 0);
    for (uint64_t left = ElementCount(box.extents); left > 0; --left) {
      uint32_t value = 0;
      for (size_t dim = 0; dim < shape.size(); ++dim) {
        value = static_cast<uint32_t>(value * shape[dim] + box.offsets[dim] + at[dim]);
      }
      const size_t end = bytes_.size();
      bytes_.resize(end + sizeof(value));
      std::memcpy(bytes_.data() + end, &value, sizeof(value));
      for (size_t dim = shape.size(); dim-- > 0;) {
        if (++at[dim] < box.extents[dim]) break;
        at[dim] = 0;
      }
    }
  }

  void Copy(const CopyOp& op, std::vector<std::byte>& slab, uint64_t from, uint64_t to,
            uint32_t dim) const {
    if (dim == op.dims) {
      std::memcpy(slab.data() + to, bytes_.data() + from, op.run_bytes);
      return;
    }
    for (uint64_t i = 0; i < op.count[dim]; ++i) {
      Copy(op, slab, from + i * op.file_stride[dim], to + i * op.slab_stride[dim], dim + 1);
    }
  }

  CheckpointIndex index_;
  std::vector<std::byte> bytes_;
};

inline Placement Replicate() { return {}; }
inline Placement ShardOf(int32_t dim) { return {Placement::Kind::kShard, dim, 1}; }
inline Placement StridedShardOf(int32_t dim, uint32_t split_factor) {
  return {Placement::Kind::kStridedShard, dim, split_factor};
}

inline Mesh MeshOf(std::vector<uint32_t> shape) {
  Mesh mesh;
  uint32_t count = 1;
  for (const uint32_t size : shape) count *= size;
  for (uint32_t rank = 0; rank < count; ++rank) mesh.ranks.push_back(rank);
  mesh.shape = std::move(shape);
  return mesh;
}

inline Sharding OnMesh(std::vector<Placement> placements) {
  Sharding sharding;
  sharding.mesh = 0;
  sharding.placements = std::move(placements);
  return sharding;
}

// One rank that asks for the named tensors, all with the same sharding.
inline RankLayout AskFor(const std::vector<std::string>& names, const Sharding& sharding,
                         const Mesh& mesh, uint32_t rank = 0) {
  RankLayout layout;
  layout.rank = rank;
  layout.world_size = static_cast<uint32_t>(mesh.ranks.size());
  layout.meshes = {mesh};
  layout.shardings = {sharding};
  for (const std::string& name : names) layout.targets.emplace_back().name = name;
  return layout;
}

// A plan that must succeed.
inline RankPlan Plan(FakeSource& source, const RankLayout& layout, const DtypePolicy& policy = {}) {
  auto plan = PlanRank(source.index(), layout, policy);
  EXPECT_THAT(plan, IsOk());
  return plan.ok() ? *std::move(plan) : RankPlan{};
}

// One rank's plan for the named tensors, all with the same sharding.
inline RankPlan PlanRow(FakeSource& source, const std::vector<std::string>& names,
                 const Sharding& sharding, const Mesh& mesh, uint32_t rank) {
  return Plan(source, AskFor(names, sharding, mesh, rank));
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_FAKE_SOURCE_H_
