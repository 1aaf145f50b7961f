#include "server/transfer/item_worker.h"

#include <algorithm>

#include "common/base/status.h"

namespace ckptd {

ItemWorker::ItemWorker(const TransferParts& parts, SlabWriter& slabs, DigestBoard* board,
                       SourceFiles& files, size_t direct_reads)
    : parts_(parts),
      reader_(files, direct_reads),
      wanted_(parts.schedule, parts.targets, kReadThroughGap),
      here_(parts.ScheduleHere(), parts.here, kReadThroughGap),
      placer_(parts.remotes.empty() ? wanted_ : here_, parts.here, slabs, board),
      sender_(parts.remotes),
      placed_(parts.here.size()) {}

absl::Status ItemWorker::Do(const WorkItem& item, std::span<uint64_t> done,
                            absl::FunctionRef<absl::Status()> poll) {
  CKPTD_RETURN_IF_ERROR(Begin(item));
  uint64_t unpolled = 0;
  for (const SourceRange& range : wanted_.ranges()) {
    for (uint64_t at = range.begin; at < range.end;) {
      if (unpolled >= kItemBytes) {  // an item may be much longer
        unpolled = 0;
        CKPTD_RETURN_IF_ERROR(poll());
      }
      const uint64_t end = wanted_.CutAtElement(at + kReadBlockBytes, range.end);
      CKPTD_RETURN_IF_ERROR(DoBlock(at, end));
      unpolled += end - at;
      at = end;
    }
  }
  reader_.End();
  return Finish(done);
}

absl::Status ItemWorker::Begin(const WorkItem& item) {
  CKPTD_RETURN_IF_ERROR(wanted_.Begin(item));
  if (sends()) {
    CKPTD_RETURN_IF_ERROR(
        here_.Begin(ItemIn(parts_.here_schedule, item.file, item.begin, item.end)));
    CKPTD_RETURN_IF_ERROR(sender_.Begin(item.file, item.begin, item.end));
  }
  placer_.Begin();
  return Blame(reader_.Begin(item), item.begin);
}

absl::Status ItemWorker::DoBlock(uint64_t begin, uint64_t end) {
  if (sends()) CKPTD_RETURN_IF_ERROR(sender_.MakeRoom(begin, end - begin));
  const absl::Status status = reader_.Use(
      begin, static_cast<size_t>(end - begin), [this, begin](std::span<const std::byte> data) {
        placer_.Place(begin, data);
        if (sends()) sender_.Add(begin, data);
      });
  return Blame(status, begin);
}

absl::Status ItemWorker::Finish(std::span<uint64_t> done) {
  std::fill(placed_.begin(), placed_.end(), 0);
  CKPTD_RETURN_IF_ERROR(placer_.Finish(placed_));
  for (size_t i = 0; i < placed_.size(); ++i) done[parts_.here_at[i]] += placed_[i];
  return sends() ? sender_.Finish(done) : absl::OkStatus();
}

absl::Status ItemWorker::Blame(const absl::Status& status, uint64_t offset) const {
  if (status.ok()) return status;
  const std::string& tensor = wanted_.TensorAt(offset);
  return WithFact(WithContext(status, "loading tensor " + tensor), "tensor", tensor);
}

}  // namespace ckptd
