// Sources of the formats that are folders of several files, and of GGUF.
#ifndef CKPTD_TESTS_CONTRACT_FORMAT_FOLDERS_CASES_H_
#define CKPTD_TESTS_CONTRACT_FORMAT_FOLDERS_CASES_H_

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/contract/format/format_contract.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/rank_files.h"
#include "tests/testing/torch_checkpointing_writer.h"

namespace ckptd {

inline std::string TextOf(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string WriteOffload(MemoryStorage& storage,
                                const std::vector<TensorOfFormat>& tensors) {
  static const std::map<Dtype, std::string> kNumpy = {{Dtype::kF32, "float32"},
                                                      {Dtype::kBF16, "bfloat16"},
                                                      {Dtype::kU8, "uint8"},
                                                      {Dtype::kI64, "int64"},
                                                      {Dtype::kF64, "float64"}};
  std::string index;
  for (const TensorOfFormat& tensor : tensors) {
    index += (index.empty() ? "{\"" : ", \"") + tensor.name + R"(": {"dtype": ")" +
             kNumpy.at(tensor.dtype) + R"(", "shape": [)" + std::to_string(tensor.shape[0]) + ", " +
             std::to_string(tensor.shape[1]) + "]}";
    storage.Write("/o/" + tensor.name + ".dat", TextOf(tensor.bytes));
  }
  storage.Write("/o/index.json", index + "}");
  return "/o";
}

inline std::string WriteGguf(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  static const std::map<Dtype, uint32_t> kTypes = {
      {Dtype::kF32, 0}, {Dtype::kBF16, 30}, {Dtype::kI64, 27}, {Dtype::kF64, 28}};
  GgufWriter writer;
  for (const TensorOfFormat& tensor : tensors) {
    writer.Add({tensor.name,
                {tensor.shape[1], tensor.shape[0]},
                kTypes.at(tensor.dtype),
                TextOf(tensor.bytes)});
  }
  storage.Write("/g/model.gguf", writer.File());
  return "/g/model.gguf";
}

// The class of storage that torch has for a type, without "Storage".
inline const std::string& StorageKind(Dtype dtype) {
  static const std::map<Dtype, std::string> kKinds = {{Dtype::kF32, "Float"},
                                                      {Dtype::kBF16, "BFloat16"},
                                                      {Dtype::kU8, "Byte"},
                                                      {Dtype::kI64, "Long"},
                                                      {Dtype::kF64, "Double"}};
  return kKinds.at(dtype);
}

// Two ranks, rows over ranks as torch chunks them, but for bytes, which both have whole. Local
// tensors are the first rows of a storage as long as rank 0's.
inline std::string WritePerRank(MemoryStorage& storage,
                                const std::vector<TensorOfFormat>& tensors) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    for (const TensorOfFormat& tensor : tensors) {
      const uint64_t element = BitsOf(tensor.dtype) / 8;
      const uint64_t rows = tensor.shape[0];
      const uint64_t columns = tensor.shape[1];
      const std::string& kind = StorageKind(tensor.dtype);
      if (tensor.dtype == Dtype::kU8) {
        file.Add(tensor.name, file.Tensor(tensor.shape, TextOf(tensor.bytes), kind, element));
        continue;
      }
      const uint64_t chunk = (rows + 1) / 2;
      const uint64_t begin = std::min(rank * chunk, rows);
      const Shape local = {std::min(chunk, rows - begin), columns};
      std::string bytes = TextOf(tensor.bytes).substr(begin * columns * element,
                                                      chunk * columns * element);
      bytes.resize(chunk * columns * element, '\0');
      file.Add(tensor.name,
               pickles::DTensor(tensor.shape,
                                file.View(local, {columns, 1}, 0, bytes, kind, element),
                                pickles::Mesh({{2}, {rank}, {0, 1}}), {pickles::Shard(0)}));
    }
    storage.Write("/p/model_world_size_2_rank_" + std::to_string(rank) + ".pt", file.File());
  }
  return "/p";
}

// Two ranks, rows over them, but for bytes, which both have whole. Rank 0 writes for torch, rank 1
// safetensors.
inline std::string WriteTorchCheckpointing(MemoryStorage& storage,
                                           const std::vector<TensorOfFormat>& tensors) {
  using Metadata = TorchCheckpointingMetadata;
  Metadata metadata(2);
  RankFile first;
  std::vector<std::pair<TensorToWrite, std::string>> second;
  for (const TensorOfFormat& tensor : tensors) {
    const bool is_whole = tensor.dtype == Dtype::kU8;
    metadata.Add("model", "[\"" + tensor.name + "\"]",
                 {Metadata::DTensor(tensor.shape, {{2}, {0, 1}},
                                    {is_whole ? Metadata::Replicate() : Metadata::Shard(0)})});
    const uint64_t element = BitsOf(tensor.dtype) / 8;
    const uint64_t rows = tensor.shape[0];
    const uint64_t columns = tensor.shape[1];
    const uint64_t upper = is_whole ? rows : (rows + 1) / 2;
    const uint64_t begin = is_whole ? 0 : upper;
    const std::string bytes = TextOf(tensor.bytes);
    const std::string first_bytes = bytes.substr(0, upper * columns * element);
    first.Add(tensor.name,
              first.Tensor({upper, columns}, first_bytes, StorageKind(tensor.dtype), element));
    second.emplace_back(TensorToWrite{tensor.name, tensor.dtype, {rows - begin, columns}},
                        bytes.substr(begin * columns * element));
  }
  metadata.PutInto("model", 0, {"model_0.pt", "TorchSerialization"});
  metadata.PutInto("model", 1, {"below/one.safetensors", "SafetensorsSerialization"});
  storage.Write("/c/metadata.pkl", metadata.File());
  storage.Write("/c/model_0.pt", first.File());
  storage.Write("/c/below/one.safetensors", SafetensorsOf(second));
  return "/c";
}

// Two ranks: 32-bit floats over both as parameters, the rest as buffers.
inline std::string WriteDeepSpeed(MemoryStorage& storage,
                                  const std::vector<TensorOfFormat>& tensors) {
  using pickles::Dict;
  using pickles::Int;
  using pickles::List;
  using pickles::Text;
  RankFile model;
  std::string flat;
  pickles::Pairs module;
  pickles::Pairs shapes;
  for (const TensorOfFormat& tensor : tensors) {
    if (tensor.dtype == Dtype::kF32) {
      flat += TextOf(tensor.bytes);
      shapes.emplace_back(Text(tensor.name), pickles::Size(tensor.shape));
    } else {
      module.emplace_back(Text(tensor.name),
                          model.Tensor(tensor.shape, TextOf(tensor.bytes),
                                       StorageKind(tensor.dtype), BitsOf(tensor.dtype) / 8));
    }
  }
  model.Add("module", pickles::OrderedDict(module));
  model.Add("param_shapes", List({pickles::OrderedDict(shapes)}));
  model.Add("dp_world_size", Int(2));
  storage.Write("/d/global_step7/mp_rank_00_model_states.pt", model.File());
  storage.Write("/d/latest", "global_step7");
  const size_t half = flat.size() / 8 * 4;  // of whole elements
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    const std::string part = rank == 0 ? flat.substr(0, half) : flat.substr(half);
    file.Add("optimizer_state_dict",
             Dict({{Text("zero_stage"), Int(2)},
                   {Text("partition_count"), List({Int(2)})},
                   {Text("single_partition_of_fp32_groups"),
                    List({file.Tensor({part.size() / 4}, part)})}}));
    storage.Write("/d/global_step7/zero_pp_rank_" + std::to_string(rank) +
                      "_mp_rank_00_optim_states.pt",
                  file.File());
  }
  return "/d";
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_FORMAT_FOLDERS_CASES_H_
