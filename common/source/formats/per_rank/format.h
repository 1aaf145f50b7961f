// A file of torch.save for each rank, with DTensors or ShardedTensors: put together by their
// placements.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_PER_RANK_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_PER_RANK_FORMAT_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// Folders with files such as accelerate's pytorch_model_fsdp_0_rank1.bin (use_dcp=False) and verl's
// model_world_size_4_rank_1.pt. Parts: "model" (the default), "optimizer", "extra" (each rank's own,
// below "rank_1."), and what stands before the rank in the names of files.
class PerRankFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "per_rank"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_PER_RANK_FORMAT_H_
