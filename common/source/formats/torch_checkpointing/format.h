// Folders that meta-pytorch's torch_checkpointing wrote.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_FORMAT_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// Read by the rules of torch_checkpointing 0.1.1, whose metadata.pkl is of version 2.0, or 1.0
// before: a file for each item and rank, of torch.save, safetensors, JSON or bytes. Without
// metadata.pkl, which only items that can be resharded have: files such as model_0.pt whose DTensors
// say how they belong together, or of one rank. Parts: see ChooseItems.
class TorchCheckpointingFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "torch_checkpointing"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_FORMAT_H_
