// Checkpoints of DeepSpeed: a folder with `latest` and folders of tags, or the folder of a tag.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FORMAT_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// Checkpoints of stages 1, 2 and 3 of ZeRO, and without it. Parts: "model" in 32 bits (the
// default), "module" as the model was saved, "optimizer". This format is asked before those of
// usual files of weights: a folder that has these, too, is of it only where a part is asked for.
class DeepSpeedFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "deepspeed"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FORMAT_H_
