// Makes one index of the headers of a source's files.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_MERGE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/safetensors/file.h"
#include "common/source/formats/safetensors/locate.h"
#include "common/source/index.h"
#include "common/source/weight_map/series.h"

namespace ckptd {

// Ours, over all files of a source: bounds the memory of the index.
inline constexpr size_t kMaxSourceTensors = 4'000'000;
inline constexpr uint64_t kMaxSourceHeaderBytes = 4'000'000'000;

// Collects files one by one, in the order of `located.names`; not thread-safe.
// `located` must outlive it.
class IndexMerger {
 public:
  explicit IndexMerger(const LocatedFiles& located)
      : located_(located), of_ranks_(located.names, ".safetensors") {}

  // Errors: InvalidArgument SOURCE_INVALID when a limit is passed.
  absl::Status Add(SafetensorsFile file);

  // The index, but for `source`. Of a tensor in several files that an index names, the last
  // file's counts, as for transformers and accelerate, which read them in order. Where files hold
  // chunks of tensors, these are put together; nothing in such files says how large a tensor was,
  // which a remark says. Errors: NotFound SOURCE_NOT_FOUND for ranks' files without which one has
  // holes.
  // DataLoss SOURCE_INVALID for one in two files without an index, for one whose chunks
  // overlap or leave holes, and for a removed name that stands for different tensors in two files:
  // unless the index names one of them, nothing says whose bytes were meant.
  absl::StatusOr<CheckpointIndex> Finish();

  // After Finish: where the index's file differs from what the files hold, and what is taken for
  // granted, in sentences.
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  void RemarkRepeated(const SafetensorsFile& file);
  absl::Status ResolveDuplicates();
  // Makes the first of a tensor's chunks all of it.
  absl::Status Join(std::span<TensorEntry> chunks);
  absl::Status WhyNotWhole(const TensorEntry& tensor, std::span<const Box> boxes) const;
  void RemarkRanks();
  // Notes which entries of the weight map are wrong.
  void CheckWeightMap();
  absl::Status AddAliases();
  // Position in located_.names of the file that the weight map names, or -1: also where that
  // file does not hold it.
  int64_t FileOf(const std::string& tensor) const;
  // Position of one of located_.names.
  uint32_t PositionOf(const std::string& name) const;
  // Whether `file` says that `name` is another name of one of its tensors.
  bool IsAliasIn(uint32_t file, const std::string& name) const;
  // `first` is the first of several entries with one name.
  bool HasEntryIn(uint32_t file, const std::string& name,
                  std::vector<TensorEntry>::const_iterator first) const;

  const LocatedFiles& located_;
  const RankSeries of_ranks_;
  CheckpointIndex index_;
  std::vector<std::map<std::string, std::string>> metadata_;  // per file
  std::vector<bool> has_chunks_;  // per file, whether it says where its tensors begin
  uint64_t header_bytes_ = 0;
  std::set<std::string> misplaced_;  // names that are not in the file that the weight map names
  std::vector<std::string> remarks_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_MERGE_H_
