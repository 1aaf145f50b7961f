// safetensors: single files, folders of them, and folders or files of an index.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FORMAT_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// Which files of a folder count, ChooseFiles says, unless its config.json names the weights.
class SafetensorsFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "safetensors"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FORMAT_H_
