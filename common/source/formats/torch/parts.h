// Which part of a file of torch is meant: the model, what the optimizer keeps, or the rest.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_PARTS_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_PARTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/torch/flatten.h"

namespace ckptd::torch {

// A tensor and what it is to a training.
struct PartTensor {
  NamedTensor named;
  std::string group;  // "" of a model
};

struct TakenPart {
  std::vector<PartTensor> tensors;
  Flattened rest;  // without its tensors
  std::vector<std::string> remarks;
};

// Where a file stands in its source.
struct PartOptions {
  std::string part;    // as asked for; empty: the default
  std::string prefix;  // of all names; empty: none
  // Whether DDP's and torch.compile's prefixes are left off a model's names: not where an index
  // has them.
  bool strips_wrappers = false;
  // Whether an object without a tensor is no error: not of a model.
  bool may_lack_tensors = false;
  // Whether types that names and JSON do not tell are among the values, as AddTypes has them.
  bool keeps_types = false;
};

// The tensors and values of a file. A file whose root is a dict with "state_dict", "model" and the
// like, as trainers write it, has the parts "model" (the default), "optimizer" and "extra", each
// named without the key; and "all", everything by its full name. A file without such a key has all
// of it as its default. Remarks say which part was taken, what there is besides, and which prefix
// was left off. Errors: those of Flatten; InvalidArgument SOURCE_INVALID as NoSuchPart;
// Unimplemented SOURCE_UNSUPPORTED where no tensor can be read, or an object of a class has none.
absl::StatusOr<TakenPart> TakePart(const File& file, const PartOptions& options);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_PARTS_H_
