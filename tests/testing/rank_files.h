// Files that ranks save, as torch and DeepSpeed pickle them, put together by hand.
#ifndef CKPTD_TESTS_TESTING_RANK_FILES_H_
#define CKPTD_TESTS_TESTING_RANK_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/source/index.h"
#include "tests/testing/torch_writer.h"

namespace ckptd {

// A file of one rank. Storages get their keys in the order in which they come.
class RankFile {
 public:
  // A tensor of 32-bit floats, or of another kind of storage, over all of `bytes`.
  std::string Tensor(const Shape& shape, const std::string& bytes,
                     const std::string& kind = "Float", uint64_t element = 4) {
    return View(shape, CStrides(shape), 0, bytes, kind, element);
  }
  std::string View(const Shape& shape, const Shape& strides, uint64_t offset,
                   const std::string& bytes, const std::string& kind = "Float",
                   uint64_t element = 4) {
    storages_.emplace_back(std::to_string(storages_.size()), bytes);
    return Again(shape, strides, offset, kind, element);
  }
  // A view whose numbers have the other sign in the file.
  std::string Negated(const Shape& shape, const std::string& bytes) {
    storages_.emplace_back(std::to_string(storages_.size()), bytes);
    return pickles::TensorV2(
        pickles::Storage("Float", storages_.back().first, bytes.size() / 4), 0, shape,
        CStrides(shape), {pickles::Dict({{pickles::Text("neg"), pickles::Bool(true)}})});
  }
  // Pairs of 4-bit numbers, which `shape` counts as torch does.
  std::string Packed(const Shape& shape, const std::string& bytes) {
    storages_.emplace_back(std::to_string(storages_.size()), bytes);
    return pickles::TensorV3(storages_.back().first, bytes.size(), 0, shape, CStrides(shape),
                             "float4_e2m1fn_x2");
  }
  // In the storage that came last.
  std::string Again(const Shape& shape, const Shape& strides, uint64_t offset,
                    const std::string& kind = "Float", uint64_t element = 4) const {
    const auto& [key, bytes] = storages_.back();
    return pickles::TensorV2(pickles::Storage(kind, key, bytes.size() / element), offset, shape,
                             strides);
  }
  void Add(const std::string& name, const std::string& value) {
    pairs_.emplace_back(pickles::Text(name), value);
  }
  // The file of a dict of all that was added.
  std::string File() const { return TorchZip(pickles::OrderedDict(pairs_), storages_); }

  static Shape CStrides(const Shape& shape) {
    Shape strides(shape.size(), 1);
    for (size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
    return strides;
  }

 private:
  Storages storages_;
  pickles::Pairs pairs_;
};

namespace pickles {

struct MeshOfRank {
  std::vector<uint64_t> shape;
  std::vector<uint64_t> coordinates;
  std::vector<uint64_t> ranks;
  std::string tensor = {};  // of torch before 2.9, which had the ranks in a tensor
  std::optional<uint64_t> own = {};  // the rank that saves it: it is a slice of `ranks`
};

inline std::string Mesh(const MeshOfRank& mesh) {
  const auto of = [](const std::string& name) {
    return Global("torch.distributed._mesh_layout", name);
  };
  Pairs state = {{Text("_coordinate_on_dim"), Ints(mesh.coordinates)}};
  if (!mesh.tensor.empty()) {
    state.emplace_back(Text("mesh"), mesh.tensor);
  } else {
    std::vector<std::string> axes;
    for (const uint64_t size : mesh.shape) {
      axes.push_back(Object(of("_FlatLayout"), Dict({{Text("shape"), Ints({size})},
                                                     {Text("stride"), Ints({1})}})));
    }
    if (mesh.own.has_value()) state.emplace_back(Text("_rank"), Int(static_cast<int64_t>(*mesh.own)));
    state.emplace_back(Text("_layout"),
                       Object(of("_MeshLayout"), Dict({{Text("axes"), Tuple(axes)}})));
    state.emplace_back(Text("_flatten_rank_map"), Ints(mesh.ranks));
  }
  return Object(Global("torch.distributed.device_mesh", "DeviceMesh"), Dict(state));
}

inline std::string PlacementAs(const std::string& name, const Pairs& state) {
  return Object(Global("torch.distributed.tensor.placement_types", name), Dict(state));
}
inline std::string Replicate() { return PlacementAs("Replicate", {{Text("x"), None()}}); }
inline std::string Shard(int64_t dim) {
  return PlacementAs("Shard", {{Text("dim"), Int(dim)}});
}
inline std::string StridedShard(int64_t dim, int64_t split_factor) {
  return PlacementAs("_StridedShard",
                     {{Text("dim"), Int(dim)}, {Text("split_factor"), Int(split_factor)}});
}

// A subclass of Tensor that torch makes without a storage, and gives a state.
inline std::string Wrapper(const std::string& type, const Shape& shape, const std::string& state) {
  return Call(Global("torch._tensor", "_rebuild_from_type_v2"),
              {Global("torch._utils", "_rebuild_wrapper_subclass"), type,
               Tuple({type, Global("torch", "float32"), Ints(shape)}), state});
}

inline std::string DTensor(const Shape& shape, const std::string& local, const std::string& mesh,
                           const std::vector<std::string>& placements) {
  const std::string spec =
      Object(Global("torch.distributed.tensor._dtensor_spec", "DTensorSpec"),
             Dict({{Text("mesh"), mesh}, {Text("placements"), Tuple(placements)}}));
  return Wrapper(Global("torch.distributed.tensor", "DTensor"), shape,
                 Tuple({None(), Dict({{Text("_local_tensor"), local}, {Text("_spec"), spec}})}));
}

// Where a shard of a ShardedTensor lies.
struct ShardPlace {
  Shape offsets;
  Shape sizes;
  uint64_t rank = 0;
};
inline std::string ShardMetadata(const ShardPlace& place) {
  const std::string device = Object(Global("torch.distributed.remote_device", "_remote_device"),
                                    Dict({{Text("_rank"), Int(static_cast<int64_t>(place.rank))}}));
  std::vector<std::string> offsets;
  std::vector<std::string> sizes;
  for (const uint64_t one : place.offsets) offsets.push_back(Int(static_cast<int64_t>(one)));
  for (const uint64_t one : place.sizes) sizes.push_back(Int(static_cast<int64_t>(one)));
  return Object(Global("torch.distributed._shard.metadata", "ShardMetadata"),
                Tuple({None(), Dict({{Text("shard_offsets"), List(offsets)},
                                     {Text("shard_sizes"), List(sizes)},
                                     {Text("placement"), device}})}));
}
// `local` has the numbers, in `all`, of shards that are here, and their tensors.
inline std::string ShardedTensor(const Shape& shape, const std::vector<ShardPlace>& all,
                                 const std::vector<std::pair<size_t, std::string>>& local) {
  std::vector<std::string> metadata;
  for (const ShardPlace& place : all) metadata.push_back(ShardMetadata(place));
  std::vector<std::string> shards;
  for (const auto& [number, tensor] : local) {
    shards.push_back(Object(Global("torch.distributed._shard.sharded_tensor.shard", "Shard"),
                            Tuple({None(), Dict({{Text("tensor"), tensor},
                                                 {Text("metadata"), metadata[number]}})})));
  }
  const std::string whole =
      Object(Global("torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata"),
             Dict({{Text("shards_metadata"), List(metadata)}}));
  return Wrapper(Global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"), shape,
                 Tuple({List(shards), whole, None(), None(), Bool(false)}));
}

// torch.Size.
inline std::string Size(const Shape& shape) {
  return Call(Global("torch", "Size"), {Ints(shape)});
}

}  // namespace pickles

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_RANK_FILES_H_
