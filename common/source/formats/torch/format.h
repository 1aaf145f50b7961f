// Files that torch.save wrote: single ones, and folders of them with and without an index.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_FORMAT_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// A single file is known by its content, whatever it is called. Which files of a folder count,
// torch::ChooseFiles says; a folder with safetensors is of this format only for other parts than
// the model, and where transformers would read pickles. Parts: see torch::TakePart.
class TorchFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "torch"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_FORMAT_H_
