// Which files of a folder are meant, by their names. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHOOSE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHOOSE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/format.h"

namespace ckptd::torch {

struct FilesChoice {
  std::string index;                  // the name of the index that counts; empty: `names` do
  std::vector<std::string> names;     // sorted
  std::vector<std::string> left_out;  // weights that do not count
};

// Whether a folder has files of torch, by their names, for the part that is asked for.
bool HasTorchFiles(const Listing& listing);

// For the model, the rule of transformers, and where that ends, ours:
//   1. pytorch_model.bin
//   2. pytorch_model.bin.index.json
//   3. the only *.bin.index.json of another name
//   4. a numbered series: the one of "pytorch_model", else the only one
//   5. the only file of weights that is no adapter and no original format; else the only one
// For the optimizer and for what else a trainer keeps: all files that are so called. Errors:
// InvalidArgument SOURCE_INVALID where several checkpoints lie there and none comes first, and as
// NoSuchPart; NotFound SOURCE_NOT_FOUND for a series with gaps, and where no file is there.
absl::StatusOr<FilesChoice> ChooseFiles(const Listing& listing);

// "optimizer_1" of "optimizer_1.bin".
std::string_view StemOf(std::string_view name);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHOOSE_H_
