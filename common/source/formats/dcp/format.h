// Checkpoints of torch.distributed.checkpoint (DCP), with what accelerate, Lightning and
// Megatron-Core lay around them.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DCP_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DCP_FORMAT_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/index.h"
#include "common/source/storage.h"

namespace ckptd {

class DcpFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "dcp"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DCP_FORMAT_H_
