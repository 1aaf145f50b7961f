// The format of what no other recognises: it says what that is, and what to do about it.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_FORMAT_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// The last one that is asked. Everything but Recognise fails, always with a sentence.
class UnrecognisedFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "unrecognised"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_FORMAT_H_
