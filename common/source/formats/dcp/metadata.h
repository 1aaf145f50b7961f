// The .metadata of a torch distributed checkpoint: it says which keys there are, and in which
// chunks and files. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DCP_METADATA_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DCP_METADATA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/index.h"
#include "common/source/pickle/value.h"

namespace ckptd::dcp {

// One key, and what is stored under it. This struct lives as long as its Metadata.
struct Stored {
  std::string_view key;
  bool is_object = false;  // bytes of something that is no tensor
  // Where it was in the state dict that was flattened, a tuple; nullptr: nobody says so.
  const pickle::Value* path = nullptr;
  const pickle::Value* description = nullptr;
};

// Bytes of a file: the tensor of one chunk, or an object.
struct Item {
  std::string_view file = {};  // relative to the folder, as it was written down; not empty
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::string_view transform = {};  // what they were put through last, such as "stream.zstd/1"
};

struct Chunk {
  Box box;
  Item item;
};

struct StoredTensor {
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;                // as it is stored
  // Those that have elements, by their offsets: disjoint, together all of it.
  std::vector<Chunk> chunks;
  // Megatron-Core up to 0.15 stores what an optimizer's rank has of a tensor as a flat run: `shape`
  // is then the grid of shards, and behind it the elements of one. This is the tensor's own shape.
  std::optional<Shape> model_shape;
};

// Movable; thread-safe once it is made.
class Metadata {
 public:
  // Errors, here and below: DataLoss SOURCE_INVALID, Unimplemented SOURCE_UNSUPPORTED; the caller
  // adds the file. Their sentences begin in the middle ("its tensor ...").
  static absl::StatusOr<Metadata> Make(pickle::Document document);

  const std::vector<Stored>& stored() const { return stored_; }  // in the order of the file
  const std::string& version() const { return version_; }        // of the format; may be empty

  // Errors with fact "tensor": also where chunks overlap or leave holes.
  absl::StatusOr<StoredTensor> TensorOf(const Stored& stored) const;
  absl::StatusOr<Item> ObjectOf(const Stored& stored) const;

 private:
  using Located = std::pair<std::string_view, const pickle::Entry*>;  // by key

  absl::Status AddStored(const pickle::Value& stored, const pickle::Value* planner_data);
  absl::Status ReadChunks(const Stored& stored, StoredTensor& out) const;

  pickle::Document document_;
  std::vector<Stored> stored_;
  std::vector<Located> located_;  // entries of storage_data, sorted by key
  std::unordered_map<std::string_view, const pickle::Value*> model_shapes_;  // by key
  std::string version_;
};

}  // namespace ckptd::dcp

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DCP_METADATA_H_
