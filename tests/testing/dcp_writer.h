// Torch distributed checkpoints put together by hand, for tests that spoil them.
#ifndef CKPTD_TESTS_TESTING_DCP_WRITER_H_
#define CKPTD_TESTS_TESTING_DCP_WRITER_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/source/index.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/torch_writer.h"

namespace ckptd {

// Names of a dtype in pickles: "Float" of torch.FloatStorage, "float32" of torch.float32.
struct TorchDtype {
  std::string storage;
  std::string name;
  size_t bytes = 1;
};
inline TorchDtype TorchDtypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return {"Float", "float32", 4};
    case Dtype::kBF16: return {"BFloat16", "bfloat16", 2};
    case Dtype::kI64: return {"Long", "int64", 8};
    case Dtype::kF64: return {"Double", "float64", 8};
    default: return {"Byte", "uint8", 1};
  }
}

struct DcpChunk {
  std::string file;
  Shape offsets;
  Shape sizes;
  std::string bytes;  // of its elements
  Shape strides = {};  // empty: C order
};

// The writer writes what was added to it; its members may be changed before.
class DcpWriter {
 public:
  // `path` is where it was in the state dict; none: planner_data does not know it.
  void AddTensor(const std::string& key, const std::vector<std::string>& path, Dtype dtype,
                 const Shape& size, const std::vector<DcpChunk>& chunks) {
    using namespace pickles;  // NOLINT(google-build-using-namespace)
    const TorchDtype names = TorchDtypeOf(dtype);
    std::vector<std::string> listed;
    for (const DcpChunk& chunk : chunks) {
      listed.push_back(ObjectOf("metadata", "ChunkStorageMetadata",
                                {{"offsets", Sizes(chunk.offsets)}, {"sizes", Sizes(chunk.sizes)}}));
      Shape strides = chunk.strides;
      for (uint64_t i = chunk.sizes.size(), step = 1; chunk.strides.empty() && i-- > 0;) {
        strides.insert(strides.begin(), step);
        step *= chunk.sizes[i];
      }
      const uint64_t elements = chunk.bytes.size() / names.bytes;
      const std::string tensor =
          TensorV2(pickles::Storage(names.storage, "0", elements), 0, chunk.sizes, strides);
      AddItem(chunk.file, key, chunk.offsets, TorchZip(tensor, {{"0", chunk.bytes}}));
    }
    const std::string properties = Object(
        Global("torch.distributed.checkpoint.metadata", "TensorProperties"),
        Tuple({Global("torch", names.name), None(), Bool(false), None(), Bool(false)}));
    described.emplace_back(key, ObjectOf("metadata", "TensorStorageMetadata",
                                         {{"properties", properties},
                                          {"size", Sizes(size)},
                                          {"chunks", List(listed)}}));
    AddPath(key, path);
  }

  // `root` pushes what is saved.
  void AddObject(const std::string& key, const std::vector<std::string>& path,
                 const std::string& file, const std::string& root) {
    AddItem(file, key, std::nullopt, TorchZip(root, {}));
    described.emplace_back(
        key, pickles::Global("torch.distributed.checkpoint.metadata", "BytesStorageMetadata") +
                 ")\x81");
    AddPath(key, path);
  }

  // Bytes of one key behind what the file holds already.
  void AddItem(const std::string& file, const std::string& key,
               const std::optional<Shape>& offsets, const std::string& bytes) {
    std::string& at = files[file];
    Locate(file, key, offsets, at.size(), bytes.size());
    at += bytes;
  }
  void Locate(const std::string& file, const std::string& key, const std::optional<Shape>& offsets,
              uint64_t offset, uint64_t length, const pickles::Pairs& more = {}) {
    using namespace pickles;  // NOLINT(google-build-using-namespace)
    Pairs index = {{"fqn", Text(key)}, {"index", Int(0)}};
    if (offsets.has_value()) index.emplace_back("offset", Sizes(*offsets));
    Pairs info = {{"relative_path", Text(file)},
                  {"offset", Int(static_cast<int64_t>(offset))},
                  {"length", Int(static_cast<int64_t>(length))}};
    info.insert(info.end(), more.begin(), more.end());
    located.emplace_back(ObjectOf("metadata", "MetadataIndex", index),
                         ObjectOf("filesystem", "_StorageInfo", info));
  }

  std::string Metadata() const {
    using namespace pickles;  // NOLINT(google-build-using-namespace)
    const auto dict = [](const Pairs& pairs) {
      Pairs named;
      for (const auto& [key, value] : pairs) named.emplace_back(Text(key), value);
      return Dict(named);
    };
    Pairs fields = {{"state_dict_metadata", dict(described)},
                    {"planner_data", paths.empty() ? None() : dict(paths)},
                    {"storage_data", Dict(located)},
                    {"storage_meta", None()},
                    {"version", Text("1.0.0")}};
    fields.insert(fields.end(), more_fields.begin(), more_fields.end());
    return Pickle(ObjectOf("metadata", "Metadata", fields));
  }

  void Write(MemoryStorage& storage, const std::string& folder) const {
    for (const auto& [name, bytes] : files) storage.Write(folder + "/" + name, bytes);
    storage.Write(folder + "/.metadata", Metadata());
  }

  // An object of a dataclass of torch.distributed.checkpoint.
  static std::string ObjectOf(const std::string& module, const std::string& name,
                              const pickles::Pairs& fields) {
    pickles::Pairs named;
    for (const auto& [key, value] : fields) named.emplace_back(pickles::Text(key), value);
    return pickles::Object(pickles::Global("torch.distributed.checkpoint." + module, name),
                           pickles::Dict(named));
  }
  static std::string Sizes(const Shape& shape) {
    return pickles::Call(pickles::Global("torch", "Size"), {pickles::Ints(shape)});
  }

  std::map<std::string, std::string> files;
  pickles::Pairs described;    // by key
  pickles::Pairs paths;        // by key
  pickles::Pairs located;      // MetadataIndex -> _StorageInfo
  pickles::Pairs more_fields;  // of Metadata

 private:
  void AddPath(const std::string& key, const std::vector<std::string>& path) {
    if (path.empty()) return;
    std::vector<std::string> elements;
    for (const std::string& element : path) elements.push_back(pickles::Text(element));
    paths.emplace_back(key, pickles::Tuple(elements));
  }
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_DCP_WRITER_H_
