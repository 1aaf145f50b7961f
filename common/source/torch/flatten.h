// Names for what a file of torch holds: nested containers become dotted names, as state_dict()
// and DCP's flattening write them.
#ifndef CKPTD_COMMON_SOURCE_TORCH_FLATTEN_H_
#define CKPTD_COMMON_SOURCE_TORCH_FLATTEN_H_

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/torch/file.h"

namespace ckptd::torch {

// Ours: nested deeper than any trainer's state.
inline constexpr size_t kMaxNesting = 2'000;
// The longest name of one thing.
inline constexpr size_t kMaxNameBytes = 65'536;
// Longer texts and bytes are named in `opaque`, and have no value.
inline constexpr size_t kMaxValueBytes = 65'536;

struct NamedTensor {
  std::string name;
  Tensor tensor;
  // As modules say that are in the file whole: a parameter or a buffer; else a parameter.
  EntryKind kind = EntryKind::kParameter;
};

// The things found below a value, each once, by the first path that leads to it.
struct Flattened {
  std::vector<NamedTensor> tensors;            // in the order of the file
  std::map<std::string, std::string> aliases;  // a later path to the same tensor -> its name
  std::map<std::string, std::string> values;   // path -> JSON, with NaN and Infinity as Python's
  std::map<std::string, std::string> opaque;   // path -> "module.Name"; what is in it is no value
  // Path of a value or a tensor -> what its path and its JSON do not tell of types, for AddTypes;
  // if that was asked for.
  std::map<std::string, std::string> types;
  // Path -> why what is there cannot be read: tensors of other kinds, those that are attributes of
  // others, and several things that have one name.
  std::map<std::string, absl::Status> refused;
};

// Looks at a record that is no tensor; true: it is taken, and nothing is found in it.
using Claim = std::function<absl::StatusOr<bool>(const std::string& path,
                                                 const pickle::Value& record)>;

// Walks `value` below `prefix` ("" or "optimizer"). Dotted paths; keys that are no text as
// Python's str() gives them; a module that was saved whole as its state_dict() would name it;
// tensors in records by attribute, key or number of the argument; nothing that is in `left_out` and
// that `value` itself holds. Two tensors are one where they
// are the same elements of a storage. Cuts cycles. A value that is a tensor itself is named
// `prefix`. Errors, with fact "file": those of TensorOf but Unimplemented; InvalidArgument
// SOURCE_INVALID where a limit is passed: kMaxNesting, kMaxNameBytes, kMaxSourceValues, and names
// of more bytes than the file accounts for (lists that hold lists twice, forty deep); those of
// `claim`.
absl::StatusOr<Flattened> Flatten(const File& file, const pickle::Value& value,
                                  const std::string& prefix,
                                  std::span<const pickle::Value* const> left_out = {},
                                  const Claim& claim = {}, bool with_types = false);

// Adds `types` to the values of a source, each under ".types." and its name: {"below": "scheduler",
// "path": [["dict", 5], ["tuple", 0]], "value": ["bytes", "AA=="]}. The path is what lies below the
// name `below`: kinds of containers, with keys and values as TypedJson has them. A name without an
// entry is split at its dots: keys are texts, and numbers from 0 on are those of a list. What would
// make more than kMaxSourceValues of `values` and `others` more is left out.
void AddTypes(const std::map<std::string, std::string>& types, const std::string& below,
              size_t others, std::map<std::string, std::string>& values);

// Says which numbers have the other sign in their file.
void SetSigns(const Tensor& tensor, TensorEntry& entry);

// As an index has it; its file's number is `number`.
TensorEntry EntryOf(const File& file, const NamedTensor& tensor, uint32_t number);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_TORCH_FLATTEN_H_
