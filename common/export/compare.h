// Compares what two sources hold, whatever their formats and however their files are cut.
#ifndef CKPTD_COMMON_EXPORT_COMPARE_H_
#define CKPTD_COMMON_EXPORT_COMPARE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/export/content.h"
#include "common/export/copy_tensor.h"

namespace ckptd {

struct TensorDifference {
  enum class Kind { kMissing, kExtra, kShape, kDtype, kValues };

  std::string name;
  Kind kind = Kind::kValues;
  const TensorEntry* a = nullptr;  // null: only the second one has it
  const TensorEntry* b = nullptr;
  // The fields below compare tensors of one shape.
  uint64_t elements = 0;  // that differ: in their bits, or as numbers where dtypes are two
  bool has_largest = false;
  double largest = 0;  // of numbers; NaN where one of two is none
};

// "missing", "extra", "shape", "dtype", "values".
std::string_view NameOf(TensorDifference::Kind kind);

struct Comparison {
  std::vector<TensorDifference> differences;  // by name
  uint64_t tensors = 0;                       // names that both have
  uint64_t bytes = 0;                         // of the first one, compared
};

// Every name counts, aliases as well. Tensors of floating dtypes that differ are compared as numbers,
// and so are integers of one dtype. Blocking; bounded memory. Errors: those of reading; Cancelled
// once `on_read`, which is told of bytes of the first one, says false.
absl::StatusOr<Comparison> Compare(const Content& a, const Content& b, const OnWritten& on_read);

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_COMPARE_H_
