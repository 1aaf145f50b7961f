// Checks of layout values that may come from another process, and small lookups
// that rest on them. Thread-safe.
#ifndef CKPTD_COMMON_LAYOUT_VALIDATE_H_
#define CKPTD_COMMON_LAYOUT_VALIDATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/layout/layout.h"

namespace ckptd {

// As many dimensions as torch can have; more in a file is an attack or an error.
inline constexpr size_t kMaxTensorDims = 64;

// LAYOUT_MISMATCH when a shape has more than kMaxTensorDims dimensions.
absl::Status CheckDims(const Shape& shape);

// "4,2" for messages; long ones end in "...".
std::string ShapeText(const Shape& shape);

// "'a', 'b' and 3 more" for messages.
std::string NamesText(const std::vector<std::string>& names);

// Mesh: 1 to 8 dimensions, none 0, as many ranks as the shape says, each once.
// InvalidArgument LAYOUT_INVALID.
absl::Status CheckMesh(const Mesh& mesh);

// The part of CheckMesh that costs nothing: all but "each once".
absl::Status CheckMeshShape(const Mesh& mesh);

// Sharding: its mesh exists, one placement per mesh dimension, split factors
// above 0, boxes and placements not mixed, padding only with placements. O(1)
// per placement; does not look into the mesh (CheckMesh does).
// InvalidArgument LAYOUT_INVALID.
absl::Status CheckSharding(const Sharding& sharding, const std::vector<Mesh>& meshes);

// Rank below world size, meshes and shardings well formed, every target's and flat
// parameter's sharding exists, every flat parameter has a member, all names (aliases
// and flat parameters included) different. InvalidArgument
// LAYOUT_INVALID or WRONG_RANK.
absl::Status CheckRankLayout(const RankLayout& layout);

// Coordinates of a rank in a mesh that CheckMeshShape accepts; nullopt when absent.
std::optional<std::vector<uint32_t>> CoordinatesOf(const Mesh& mesh, uint32_t rank);

// Index of a box that overlaps another one; nullopt when all are disjoint. Boxes
// have the same number of dimensions, no extent is 0, no end overflows.
std::optional<size_t> FindOverlap(const std::vector<Box>& boxes);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_VALIDATE_H_
