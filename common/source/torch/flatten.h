// Names for what a file of torch holds: nested containers become dotted names, as state_dict()
// and DCP's flattening write them.
#ifndef CKPTD_COMMON_SOURCE_TORCH_FLATTEN_H_
#define CKPTD_COMMON_SOURCE_TORCH_FLATTEN_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/torch/file.h"

namespace ckptd::torch {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// What was found below a value, each thing once, by the first path that leads to it.
struct Flattened {
  std::vector<NamedTensor> tensors;           // in the order of the file
  std::map<std::string, std::string> aliases;  // a later path to the same tensor -> its name
  std::map<std::string, std::string> values;   // path -> JSON
  std::map<std::string, std::string> opaque;   // path -> "module.Name"
  std::map<std::string, absl::Status> refused;  // path -> why this tensor cannot be read
};

// Walks `value` below `prefix` ("" or "optimizer"). Dotted paths; keys that are no text as
// Python's str() gives them; a module that was saved whole as its state_dict() would name it. Cuts
// cycles. Errors: DataLoss SOURCE_INVALID where two things get one name; InvalidArgument
// SOURCE_INVALID above kMaxSourceValues.
absl::StatusOr<Flattened> Flatten(const File& file, const pickle::Value& value,
                                  const std::string& prefix);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_TORCH_FLATTEN_H_
