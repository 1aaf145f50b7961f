#include "common/source/formats/dcp/flat_runs.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/checked_math.h"
#include "common/source/piece.h"

namespace ckptd::dcp {

std::string BoxesOfRun(const Shape& stored_shape, const Shape& model_shape,
                       std::vector<Box>& boxes) {
  const size_t dims = model_shape.size();
  if (stored_shape.size() != dims + 1) return "has another number of dimensions in its model";
  Shape shard(dims);
  for (size_t dim = 0; dim < dims; ++dim) {
    const uint64_t shards = stored_shape[dim];
    if (shards == 0 || model_shape[dim] % shards != 0) return "does not fall into its shards";
    shard[dim] = model_shape[dim] / shards;
  }
  if (CheckedElements(shard) != stored_shape[dims]) return "has shards of another size";
  const Box run = std::move(boxes.front());
  for (size_t dim = 0; dim < dims; ++dim) {
    if (run.extents[dim] != 1) return "has a flat run of several shards";
  }
  const uint64_t begin = run.offsets[dims];
  boxes = BoxesOfRange(shard, begin, begin + run.extents[dims]);
  for (Box& box : boxes) {
    for (size_t dim = 0; dim < dims; ++dim) box.offsets[dim] += run.offsets[dim] * shard[dim];
  }
  return "";
}

}  // namespace ckptd::dcp
