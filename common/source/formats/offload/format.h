// Folders that accelerate offloads weights to: index.json, and of each tensor a file of its bytes.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_OFFLOAD_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_OFFLOAD_FORMAT_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// The folder, or its index.json.
class OffloadFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "offload"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_OFFLOAD_FORMAT_H_
