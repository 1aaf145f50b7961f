// The metadata.pkl of meta-pytorch's torch_checkpointing, put together by hand.
#ifndef CKPTD_TESTS_TESTING_TORCH_CHECKPOINTING_WRITER_H_
#define CKPTD_TESTS_TESTING_TORCH_CHECKPOINTING_WRITER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/source/index.h"
#include "tests/testing/pickle_writer.h"
#include "tests/testing/safetensors_writer.h"

namespace ckptd {

class TorchCheckpointingMetadata {
 public:
  explicit TorchCheckpointingMetadata(uint64_t ranks) : ranks_(ranks) {}

  struct Mesh {
    Shape shape;
    std::vector<uint64_t> ranks;
  };
  static std::string Replicate() { return TypeOf("Replicate"); }
  static std::string Shard(int64_t dim) {
    return TypeOf("Shard", {{pickles::Text("dim"), pickles::Int(dim)}});
  }
  static std::string StridedShard(int64_t dim, int64_t split_factor) {
    return TypeOf("StridedShard", {{pickles::Text("dim"), pickles::Int(dim)},
                                   {pickles::Text("split_factor"), pickles::Int(split_factor)}});
  }
  static std::string TypeOf(const std::string& type, pickles::Pairs more = {}) {
    more.insert(more.begin(), {pickles::Text("type"), pickles::Text(type)});
    return pickles::Dict(more);
  }

  // A group of DTensor's metadata.
  static std::string DTensor(const Shape& shape, const Mesh& mesh,
                             const std::vector<std::string>& placements) {
    using pickles::Ints;
    using pickles::Text;
    const std::string spec = pickles::Dict({{Text("device_type"), Text("cpu")},
                                            {Text("mesh_shape"), Ints(mesh.shape)},
                                            {Text("mesh_data"), Ints(mesh.ranks)},
                                            {Text("mesh_dim_names"), pickles::None()}});
    return Group("DTensorShardingMetadata",
                 {{Text("global_shape"), Sizes(shape)},
                  {Text("mesh_spec"), spec},
                  {Text("placements"), pickles::List(placements)}},
                 mesh.ranks);
  }
  struct Box {
    Shape global;
    Shape local;
    Shape sizes;
  };
  static std::string Boxes(const Shape& shape, const std::vector<Box>& boxes,
                           const std::vector<uint64_t>& ranks) {
    std::vector<std::string> global;
    std::vector<std::string> local;
    std::vector<std::string> sizes;
    for (const Box& box : boxes) {
      global.push_back(Sizes(box.global));
      local.push_back(Sizes(box.local));
      sizes.push_back(Sizes(box.sizes));
    }
    return Group("default_tensor_v1",
                 {{pickles::Text("global_shape"), Sizes(shape)},
                  {pickles::Text("global_offsets"), pickles::List(global)},
                  {pickles::Text("local_offsets"), pickles::List(local)},
                  {pickles::Text("local_sizes"), pickles::List(sizes)}},
                 ranks);
  }
  static std::string Group(const std::string& type, const pickles::Pairs& data,
                           const std::vector<uint64_t>& ranks) {
    const std::string packed = pickles::Dict({{pickles::Text("type"), pickles::Text(type)},
                                              {pickles::Text("data"), pickles::Dict(data)}});
    return pickles::Dict({{pickles::Text("sharding_metadata"), packed},
                          {pickles::Text("ranks"), pickles::Ints(ranks)}});
  }

  // `path` is JSON: ["state",0,"exp_avg"].
  void Add(const std::string& item, const std::string& path,
           const std::vector<std::string>& groups) {
    tensors_[item].emplace_back(path, pickles::List(groups));
  }
  // Where each rank puts an item: "{rank}" in `file` is its number.
  void PutInto(const std::string& item, const std::string& file, const std::string& type) {
    for (uint64_t rank = 0; rank < ranks_; ++rank) {
      std::string name = file;
      const size_t at = name.find("{rank}");
      if (at != std::string::npos) name.replace(at, 6, std::to_string(rank));
      PutInto(item, rank, {name, type});
    }
  }
  struct Layout {
    std::string file;
    std::string type;
  };
  void PutInto(const std::string& item, uint64_t rank, const Layout& layout) {
    layouts_[{item, rank}] = layout;
  }

  // As version 2.0 and, said otherwise, 1.0 and others write it.
  std::string File(const std::string& version = "2.0") const {
    using pickles::Dict;
    using pickles::Text;
    pickles::Pairs all;
    pickles::Pairs by_rank;
    for (const auto& [item, tensors] : tensors_) {
      pickles::Pairs paths;
      for (const auto& [path, groups] : tensors) {
        if (version == "1.0") {
          all.emplace_back(Text("[\"" + item + "\"" + (path == "[]" ? "" : ",") + path.substr(1)),
                           groups);
        }
        paths.emplace_back(Text(path), groups);
      }
      if (version == "1.0") continue;
      pickles::Pairs ranks;
      for (uint64_t rank = 0; rank < ranks_; ++rank) {
        ranks.emplace_back(pickles::Int(static_cast<int64_t>(rank)), LayoutOf(item, rank));
      }
      all.emplace_back(Text(item), Dict({{Text("nested_path_to_metadata"), Dict(paths)},
                                         {Text("rank_to_layout_info"), Dict(ranks)}}));
    }
    for (uint64_t rank = 0; rank < ranks_ && version == "1.0"; ++rank) {
      pickles::Pairs items;
      for (const auto& tensors : tensors_) {
        items.emplace_back(Text(tensors.first), LayoutOf(tensors.first, rank));
      }
      by_rank.emplace_back(pickles::Int(static_cast<int64_t>(rank)), Dict(items));
    }
    pickles::Pairs root = {{Text("metadata"), Dict(all)}};
    if (version == "1.0") root.emplace_back(Text("rank_to_layout_info_mappings"), Dict(by_rank));
    root.emplace_back(Text("world_size"), pickles::Int(static_cast<int64_t>(ranks_)));
    root.emplace_back(Text("version"), Text(version));
    return pickles::Pickle(Dict(root));
  }

 private:
  static std::string Sizes(const Shape& sizes) {
    std::vector<std::string> out;
    for (const uint64_t size : sizes) out.push_back(pickles::Int(static_cast<int64_t>(size)));
    return pickles::List(out);
  }
  std::string LayoutOf(const std::string& item, uint64_t rank) const {
    const auto layout = layouts_.find({item, rank});
    if (layout == layouts_.end()) return pickles::None();
    return pickles::Dict({{pickles::Text("file_path"), pickles::Text(layout->second.file)},
                          {pickles::Text("serialization_format"), TypeOf(layout->second.type)}});
  }

  const uint64_t ranks_;
  std::map<std::string, std::vector<std::pair<std::string, std::string>>> tensors_;
  std::map<std::pair<std::string, uint64_t>, Layout> layouts_;  // by item and rank
};

// A safetensors file of tensors and their bytes.
inline std::string SafetensorsOf(
    const std::vector<std::pair<TensorToWrite, std::string>>& tensors,
    const std::map<std::string, std::string>& metadata = {}) {
  std::vector<TensorToWrite> wanted;
  for (const auto& tensor : tensors) wanted.push_back(tensor.first);
  const SafetensorsLayout layout = LayoutSafetensors(wanted, metadata).value();
  std::string out = layout.start;
  for (const size_t number : layout.order) out += tensors[number].second;
  return out;
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_TORCH_CHECKPOINTING_WRITER_H_
