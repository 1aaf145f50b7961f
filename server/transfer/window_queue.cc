#include "server/transfer/window_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace ckptd {
namespace {

// A window without bytes counts as one byte: its tensors are empty, but they get digests.
absl::uint128 PlaceOf(uint64_t bytes) { return std::max<uint64_t>(bytes, 1); }

// How many of `items` a claim takes. Items may be longer than kItemBytes, so the first ones may
// have the bytes of all.
size_t CountForBytes(std::span<const WorkItem> items) {
  uint64_t bytes = 0;
  size_t count = 0;
  while (count < items.size() && bytes < items.size() * kItemBytes) {
    bytes += items[count].end - items[count].begin;
    ++count;
  }
  return count;
}

}  // namespace

WindowQueue::WindowQueue(const WindowSource& source, const TransferOptions& options,
                         std::span<const SlabMap> slabs, SourceFiles& files)
    : source_(source), options_(options), slabs_(slabs), files_(files) {
  // Bytes are counted times parts, so that nothing is rounded.
  absl::uint128 total = 0;
  for (const uint64_t bytes : source.window_bytes) total += PlaceOf(bytes);
  const absl::uint128 first = total * options.part;
  const absl::uint128 last = total * (options.part + uint64_t{1});
  absl::uint128 begin = 0;
  for (size_t i = 0; i < source.window_bytes.size(); ++i) {
    const absl::uint128 of = PlaceOf(source.window_bytes[i]) * options.parts;
    const absl::uint128 from = std::clamp(first, begin, begin + of) - begin;
    const absl::uint128 to = std::clamp(last, begin, begin + of) - begin;
    if (from < to) shares_.push_back({i, {from, to, of}});
    begin += of;
  }
}

absl::StatusOr<WindowQueue::First> WindowQueue::Start() {
  MutexLock lock(mutex_);
  if (!shares_.empty()) MakeNext();
  CKPTD_RETURN_IF_ERROR(error_);
  First first;
  if (next_ != nullptr) first.items = next_->parts.items.size();
  first.only = next_share_ == shares_.size();
  return first;
}

absl::StatusOr<std::shared_ptr<TransferWindow>> WindowQueue::Make(const Share& share) const {
  auto window = std::make_shared<TransferWindow>();
  CKPTD_RETURN_IF_ERROR(source_.plan(share.window, *window));
  const bool whole = source_.steps.empty();
  CKPTD_RETURN_IF_ERROR(BuildParts(*source_.index, window->targets, share.items,
                                   whole ? nullptr : &source_.steps[share.window],
                                   window->parts));
  files_.Expect(window->parts.items);
  window->number = share.window;
  window->items_left = window->parts.items.size();
  window->items_not_in_place = window->parts.items.size();
  if (options_.digests) {
    window->board = std::make_unique<DigestBoard>(window->parts.here, slabs_);
  }
  return window;
}

void WindowQueue::MakeNext() {
  making_ = true;
  const Share& share = shares_[next_share_++];
  mutex_.Unlock();
  auto made = Make(share);
  mutex_.Lock();
  making_ = false;
  if (made.ok()) {
    next_ = *std::move(made);
  } else if (error_.ok()) {
    error_ = made.status();
  }
  made_.NotifyAll();
}

absl::StatusOr<WindowQueue::Claimed> WindowQueue::Next(size_t most) {
  MutexLock lock(mutex_);
  while (true) {
    CKPTD_RETURN_IF_ERROR(error_);
    if (next_ == nullptr && !making_ && next_share_ < shares_.size()) MakeNext();
    CKPTD_RETURN_IF_ERROR(error_);
    if (current_ != nullptr && next_item_ < current_->parts.items.size()) {
      const std::span<const WorkItem> left = current_->parts.items.subspan(next_item_);
      const size_t count = CountForBytes(left.first(std::min(most, left.size())));
      next_item_ += count;
      return Claimed{current_, left.first(count)};
    }
    if (next_ != nullptr) {
      current_ = std::exchange(next_, nullptr);
      next_item_ = 0;
      if (current_->parts.items.empty()) return Claimed{current_, {}};
      continue;
    }
    if (!making_) return Claimed{};
    // Another thread of this transfer makes the window, and waits for nobody.
    made_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !making_; });
  }
}

}  // namespace ckptd
