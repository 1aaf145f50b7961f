// Checkpoints of DeepSpeed: a folder with `latest` and folders of tags, or the folder of a tag.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FORMAT_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// Of stages 1, 2 and 3 of ZeRO, and without it. Parts: "model" in 32 bits (the default), "module"
// as the model was saved, "optimizer". In a folder that has usual files of weights, too, only parts
// that are asked for are meant: asked before the formats of such files.
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
