#include "server/transfer/window_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace ckptd {
namespace {

// What comes before part `part` of `parts`, of `total`. Every reader works out the same
// numbers, so no item is read twice or never.
double Before(uint64_t total, uint32_t part, uint32_t parts) {
  return static_cast<double>(total) * part / parts;
}

}  // namespace

WindowQueue::WindowQueue(const WindowSource& source, const TransferOptions& options,
                         std::span<const SlabMap> slabs, SourceFiles& files)
    : source_(source), options_(options), slabs_(slabs), files_(files) {
  uint64_t total = 0;
  // A window without bytes has its place, too: its tensors are empty, and hashed.
  for (const uint64_t bytes : source.window_bytes) total += std::max<uint64_t>(bytes, 1);
  const double first = Before(total, options.part, options.parts);
  const double last = Before(total, options.part + 1, options.parts);
  uint64_t begin = 0;
  for (size_t i = 0; i < source.window_bytes.size(); ++i) {
    const uint64_t bytes = std::max<uint64_t>(source.window_bytes[i], 1);
    const auto share = [&](double at) {
      return std::clamp((at - static_cast<double>(begin)) / static_cast<double>(bytes), 0.0, 1.0);
    };
    if (share(first) < share(last)) shares_.push_back({i, share(first), share(last)});
    begin += bytes;
  }
}

absl::StatusOr<WindowQueue::First> WindowQueue::Start() {
  MutexLock lock(mutex_);
  if (!shares_.empty()) MakeAhead();
  CKPTD_RETURN_IF_ERROR(error_);
  First first;
  if (ahead_ != nullptr) first.items = ahead_->parts.items.size();
  first.only = next_share_ == shares_.size();
  return first;
}

absl::StatusOr<std::shared_ptr<TransferWindow>> WindowQueue::Make(const Share& share) const {
  auto window = std::make_shared<TransferWindow>();
  CKPTD_RETURN_IF_ERROR(source_.plan(share.window, *window));
  CKPTD_RETURN_IF_ERROR(
      BuildParts(*source_.index, window->targets, {share.begin, share.end}, window->parts));
  files_.Expect(window->parts.items);
  window->items_left = window->parts.items.size();
  if (options_.digests) {
    window->board = std::make_unique<DigestBoard>(window->parts.here, slabs_);
  }
  return window;
}

void WindowQueue::MakeAhead() {
  making_ = true;
  const Share& share = shares_[next_share_++];
  mutex_.Unlock();
  auto made = Make(share);
  mutex_.Lock();
  making_ = false;
  if (made.ok()) {
    ahead_ = *std::move(made);
  } else if (error_.ok()) {
    error_ = made.status();
  }
  made_.NotifyAll();
}

absl::StatusOr<WindowQueue::Claimed> WindowQueue::Next() {
  MutexLock lock(mutex_);
  while (true) {
    CKPTD_RETURN_IF_ERROR(error_);
    if (ahead_ == nullptr && !making_ && next_share_ < shares_.size()) MakeAhead();
    CKPTD_RETURN_IF_ERROR(error_);
    if (current_ != nullptr && next_item_ < current_->parts.items.size()) {
      return Claimed{current_, &current_->parts.items[next_item_++]};
    }
    if (ahead_ != nullptr) {
      current_ = std::exchange(ahead_, nullptr);
      next_item_ = 0;
      if (current_->parts.items.empty()) return Claimed{current_, nullptr};
      continue;
    }
    if (!making_) return Claimed{};
    // Another thread of this transfer computes it; nothing it does waits.
    made_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !making_; });
  }
}

}  // namespace ckptd
