// GGUF: files of ggml's programs, single or split. Tensors of plain types load as they are;
// quantised ones are named.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_GGUF_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_GGUF_FORMAT_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// A file, or a folder with one file or one split model (NAME-00001-of-00003.gguf ...).
class GgufFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "gguf"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_GGUF_FORMAT_H_
