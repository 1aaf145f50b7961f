// Makes one index of the headers of a source's files.
#ifndef CKPTD_COMMON_CHECKPOINT_MERGE_H_
#define CKPTD_COMMON_CHECKPOINT_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/index.h"
#include "common/checkpoint/locate.h"
#include "common/checkpoint/safetensors_file.h"

namespace ckptd {

// Ours, over all files of a source: bounds the memory of the index.
inline constexpr size_t kMaxSourceTensors = 4'000'000;
inline constexpr uint64_t kMaxSourceHeaderBytes = 4'000'000'000;

// Collects files one by one, in the order of `located.names`; not thread-safe.
// `located` must outlive it.
class IndexMerger {
 public:
  explicit IndexMerger(const LocatedSource& located) : located_(located) {}

  // Errors: InvalidArgument SOURCE_INVALID when a limit is passed.
  absl::Status Add(SafetensorsFile file);

  // The index, but for `source`. Errors: DataLoss SOURCE_INVALID for a tensor
  // that two files hold, or that a file lacks though the index puts it there, and
  // for a removed name that stands for different tensors in two files: unless the
  // index names one of them, nothing says whose bytes were meant.
  absl::StatusOr<CheckpointIndex> Finish();

 private:
  absl::Status ResolveDuplicates();
  absl::Status CheckWeightMap();
  absl::Status AddAliases();
  // Position in located_.names of the file that the weight map names, or -1.
  int64_t FileOf(const std::string& tensor) const;
  // Position of one of located_.names.
  uint32_t PositionOf(const std::string& name) const;
  // Whether `file` says that `name` is another name of one of its tensors.
  bool IsAliasIn(uint32_t file, const std::string& name) const;
  // Of several entries with one name, `first` is the first.
  bool HasEntryIn(uint32_t file, const std::string& name,
                  std::vector<TensorEntry>::const_iterator first) const;

  const LocatedSource& located_;
  CheckpointIndex index_;
  std::vector<std::map<std::string, std::string>> metadata_;  // per file
  uint64_t header_bytes_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_CHECKPOINT_MERGE_H_
