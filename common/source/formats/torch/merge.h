// Makes one index of the parts of a source's files.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_MERGE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/formats/torch/locate.h"
#include "common/source/formats/torch/parts.h"
#include "common/source/index.h"

namespace ckptd::torch {

// Ours, over all files of a source: bounds the memory of the index.
inline constexpr size_t kMaxSourceTensors = 4'000'000;

// Collects files one by one, in the order of `located.names`; not thread-safe. `located` must
// outlive it.
class IndexMerger {
 public:
  explicit IndexMerger(const LocatedFiles& located) : located_(located) {}

  // The last file's tensor counts where a name is in several files that an index names, as for
  // transformers and accelerate, which read them in order. Errors: InvalidArgument SOURCE_INVALID
  // when a limit is passed; DataLoss SOURCE_INVALID for a name in two files without an index.
  absl::Status Add(const File& file, TakenPart part);

  // The index, but for what its source and format are. Errors: those of FinishTensors.
  absl::StatusOr<CheckpointIndex> Finish();

  // After Finish: sentences of the files, and where the index's file differs from them.
  std::vector<std::string>& remarks() { return remarks_; }

 private:
  absl::Status MakeRoom(const std::string& name, const SourceFile& file);
  uint32_t GroupOf(const std::string& name);
  void CheckWeightMap();

  const LocatedFiles& located_;
  CheckpointIndex index_;
  std::map<std::string, TensorEntry> tensors_;
  std::vector<std::string> remarks_;
};

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_MERGE_H_
