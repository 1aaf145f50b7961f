// Checks layout values that may come from another process, and has small lookups that rely on
// these checks. Thread-safe.
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

// As many dimensions as torch supports. More in a file is an attack or an error.
inline constexpr size_t kMaxTensorDims = 64;

// LAYOUT_MISMATCH if a shape has more than kMaxTensorDims dimensions.
absl::Status CheckDims(const Shape& shape);

// "4,2" for messages. Long ones end in "...".
std::string ShapeText(const Shape& shape);

// "'a', 'b' and 3 more" for messages.
std::string NamesText(const std::vector<std::string>& names);

// A mesh has 1 to 8 dimensions, none 0, and as many ranks as its shape, each once.
// InvalidArgument LAYOUT_INVALID.
absl::Status CheckMesh(const Mesh& mesh);

// The cheap part of CheckMesh: everything except "each once".
absl::Status CheckMeshShape(const Mesh& mesh);

// A sharding's mesh exists, it has one placement per mesh dimension, split factors are above 0,
// boxes and placements are not mixed, and padding comes only with placements. O(1) per placement.
// Does not check the mesh (CheckMesh does). InvalidArgument LAYOUT_INVALID.
absl::Status CheckSharding(const Sharding& sharding, const std::vector<Mesh>& meshes);

// The rank is below the world size, meshes and shardings are well formed, the sharding of every
// target and flat parameter exists, every flat parameter has a member, and all names (including
// aliases and flat parameters) differ. InvalidArgument LAYOUT_INVALID or WRONG_RANK.
absl::Status CheckRankLayout(const RankLayout& layout);

// Coordinates of a rank in a mesh that CheckMeshShape accepts. Nullopt if absent.
std::optional<std::vector<uint32_t>> CoordinatesOf(const Mesh& mesh, uint32_t rank);

// Index of a box that overlaps another one. Nullopt if all are disjoint. Boxes must have the same
// number of dimensions, no extent 0 and no end that overflows.
std::optional<size_t> FindOverlap(const std::vector<Box>& boxes);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_VALIDATE_H_
