#include "server/transfer/item_worker.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace ckptd {

ItemWorker::Tools::Tools(const TransferWindow& window, SlabWriter& slabs)
    : parts(window.parts),
      wanted(parts.schedule, parts.targets, kReadThroughGap),
      here(parts.ScheduleHere(), parts.here, kReadThroughGap),
      placer(parts.remotes.empty() ? wanted : here, parts.here, slabs, window.board.get()),
      sender(parts.remotes),
      placed(parts.here.size()) {}

void ItemWorker::UseWindow(std::shared_ptr<const TransferWindow> window) {
  if (window == window_) return;
  tools_.emplace(*window, slabs_);
  window_ = std::move(window);
}

absl::Status ItemWorker::Do(std::shared_ptr<const TransferWindow> window, const WorkItem& item,
                            std::span<uint64_t> done, absl::FunctionRef<absl::Status()> poll) {
  UseWindow(std::move(window));
  CKPTD_RETURN_IF_ERROR(Begin(item));
  uint64_t unpolled = 0;
  for (const SourceRange& range : tools_->wanted.ranges()) {
    for (uint64_t at = range.begin; at < range.end;) {
      if (unpolled >= kItemBytes) {  // an item may be much longer
        unpolled = 0;
        CKPTD_RETURN_IF_ERROR(poll());
      }
      const uint64_t end = tools_->wanted.CutAtElement(at + kReadBlockBytes, range.end);
      CKPTD_RETURN_IF_ERROR(DoBlock(at, end));
      unpolled += end - at;
      at = end;
    }
  }
  reader_.End();
  return Finish(done);
}

absl::Status ItemWorker::Begin(const WorkItem& item) {
  CKPTD_RETURN_IF_ERROR(tools_->wanted.Begin(item));
  if (sends()) {
    CKPTD_RETURN_IF_ERROR(
        tools_->here.Begin(ItemIn(tools_->parts.here_schedule, item.file, item.begin, item.end)));
    CKPTD_RETURN_IF_ERROR(tools_->sender.Begin(item.file, item.begin, item.end));
  }
  tools_->placer.Begin();
  const bool direct_to_target = !sends() && tools_->placer.plain();
  return NameTensor(reader_.Begin(item, direct_to_target, tools_->wanted.ranges()), item.begin);
}

absl::Status ItemWorker::DoBlock(uint64_t begin, uint64_t end) {
  if (in_place()) {
    const auto read = [this](uint64_t offset, std::span<std::byte> place) {
      return NameTensor(reader_.ReadTo(offset, place), offset);
    };
    return tools_->placer.PlaceByReading(begin, end, read);
  }
  if (sends()) CKPTD_RETURN_IF_ERROR(tools_->sender.MakeRoom(begin, end - begin));
  const absl::Status status = reader_.WithBlock(
      begin, static_cast<size_t>(end - begin), [this, begin](std::span<const std::byte> data) {
        tools_->placer.Place(begin, data);
        if (sends()) tools_->sender.Add(begin, data);
      });
  return NameTensor(status, begin);
}

absl::Status ItemWorker::Finish(std::span<uint64_t> done) {
  std::fill(tools_->placed.begin(), tools_->placed.end(), 0);
  CKPTD_RETURN_IF_ERROR(tools_->placer.Finish(tools_->placed));
  for (size_t i = 0; i < tools_->placed.size(); ++i) {
    done[tools_->parts.here_at[i]] += tools_->placed[i];
  }
  return sends() ? tools_->sender.Finish(done) : absl::OkStatus();
}

absl::Status ItemWorker::NameTensor(const absl::Status& status, uint64_t offset) const {
  if (status.ok()) return status;
  const std::string& tensor = tools_->wanted.TensorAt(offset);
  return WithFact(WithContext(status, "loading tensor " + tensor), "tensor", tensor);
}

}  // namespace ckptd
