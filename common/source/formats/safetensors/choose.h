// Which files of a folder make its checkpoint. Reads nothing, but to say what a folder without
// safetensors holds instead.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_CHOOSE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_CHOOSE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/formats/safetensors/folder.h"

namespace ckptd {

struct FolderChoice {
  std::string index;               // the name of the index that counts; empty: `names` do
  std::vector<std::string> names;  // *.safetensors, sorted
};

// The rule of transformers, and where that ends, ours:
//   1. model.safetensors
//   2. model.safetensors.index.json
//   3. pytorch_model.bin or its index, which are not of this format (PicklesComeFirst)
//   4. the only index of another name
//   5. a numbered series: the one of "model", else the only one
//   6. all files, but for those that by their names are no part of the model
// `folder` is for messages. Errors: InvalidArgument SOURCE_INVALID where several checkpoints
// lie there and none comes first; NotFound SOURCE_NOT_FOUND for a series with a gap, and where no
// file is there.
absl::StatusOr<FolderChoice> ChooseFiles(const std::string& folder,
                                         const FolderContents& contents);

// Whether the rule ends at 3: transformers and accelerate would read pickles.
bool PicklesComeFirst(const FolderContents& contents);

// Whether a file is no part of the model by its name: an adapter's, an optimizer's, or the
// same weights in their original format (consolidated).
bool IsNoPartOfTheModel(const std::string& name);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_CHOOSE_H_
