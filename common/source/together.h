// All parts of a training whose parts lie side by side, each in a format of its own.
#ifndef CKPTD_COMMON_SOURCE_TOGETHER_H_
#define CKPTD_COMMON_SOURCE_TOGETHER_H_

#include <string_view>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// "#all" of folders such as accelerate's save_state and the HF Trainer's: the model (names begin
// "model."), the optimizer ("optimizer.", as far as its names do not begin so by themselves), and
// what else there is, under the names of its files ("scheduler.last_epoch"). Only where at least
// two of them are there, and no format has an "all" of its own. Asked for a
// part that no format recognises, it says which there are.
class TogetherFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "parts"; }
  bool Recognise(const Storage& storage, const Listing& listing) const override;
  absl::Status Check(const Storage& storage, const Listing& listing) const override;
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override;
  // Reads all headers again, since no part knows which of the files are its own.
  absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_TOGETHER_H_
