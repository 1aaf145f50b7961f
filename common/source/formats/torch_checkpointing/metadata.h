// torch_checkpointing's metadata.pkl says which files hold the items of a checkpoint, and how their
// tensors lie over ranks. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_METADATA_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_METADATA_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/index.h"
#include "common/source/pickle/value.h"
#include "common/source/placements.h"

namespace ckptd::torch_checkpointing {

inline constexpr char kMetadata[] = "metadata.pkl";

enum class Encoding : uint8_t { kTorch, kSafetensors, kJson, kRaw };

// Where a rank has put an item.
struct Layout {
  std::string name;  // relative to the folder, as it was written down
  Encoding encoding = Encoding::kTorch;
};

struct Mesh {
  std::vector<uint32_t> shape;
  std::map<uint32_t, uint32_t> places;  // of ranks, row by row
};

// How some ranks have a tensor.
struct Sharding {
  std::vector<uint32_t> ranks;  // sorted
  Shape shape;                  // of the whole tensor, as torch counts
  // If it is a DTensor:
  std::shared_ptr<const Mesh> mesh;
  std::vector<Placement> placements;
  // Without a mesh: the boxes that each of the ranks has.
  std::vector<PlacedBox> boxes;
  std::string foreign;  // a class of the trainer's that says it, and that is not read; else empty
};

struct Item {
  std::map<std::string, std::vector<Sharding>> tensors;  // by dotted name below the item
  std::map<uint32_t, Layout> layouts;                     // by rank; others have the default
};

struct Metadata {
  std::string version;
  uint32_t ranks = 0;
  std::map<std::string, Item> items;
};

// Reads versions 1.0 and 2.0. Errors: DataLoss SOURCE_INVALID for what does not hold together,
// InvalidArgument SOURCE_INVALID past a limit, Unimplemented SOURCE_UNSUPPORTED for other versions
// and ways to write files. The caller adds the file; their sentences begin in the middle ("it has
// ...").
absl::StatusOr<Metadata> ReadMetadata(const pickle::Value& root);

// The part of a tensor that a rank has; nullopt: none that counts. Where a DTensor is cut in
// several ways, that of the lowest ranks counts. `local_shape` is the shape in the rank's file, as
// torch counts. Errors: those of CutByPlacements; DataLoss SOURCE_INVALID for boxes outside of it.
absl::StatusOr<std::optional<CutTensor>> CutOf(const std::vector<Sharding>& shardings,
                                               uint32_t rank, const Shape& local_shape);

}  // namespace ckptd::torch_checkpointing

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_METADATA_H_
