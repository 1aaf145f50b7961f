// index.json of a folder that accelerate offloaded weights to: which tensor has which type and
// shape. Pure: no I/O.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_OFFLOAD_INDEX_JSON_H_
#define CKPTD_COMMON_SOURCE_FORMATS_OFFLOAD_INDEX_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/dtype.h"
#include "common/source/index.h"

namespace ckptd::offload {

// Ours: 300 bytes for each file that a source may have.
inline constexpr size_t kMaxIndexBytes = 30'000'000;

// A tensor that lies in the file `name`.dat, in row-major order.
struct Entry {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;
};

// Parses {name: {"dtype": "float32", "shape": [2, 3]}}, as accelerate's offload_weight writes it.
// Sorted by name; of a name that is stated twice the last one counts. Errors, without the index's
// own path: DataLoss SOURCE_INVALID for what is no such JSON, InvalidArgument SOURCE_INVALID for a
// name that leads out of the folder and for more than kMaxSourceFiles tensors, Unimplemented
// SOURCE_UNSUPPORTED for a type that is not known and for a tensor that lies in a safetensors file.
absl::StatusOr<std::vector<Entry>> ParseIndex(std::string_view json);

}  // namespace ckptd::offload

#endif  // CKPTD_COMMON_SOURCE_FORMATS_OFFLOAD_INDEX_JSON_H_
