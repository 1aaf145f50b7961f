#include "server/transfer/direct_items.h"

#include <algorithm>
#include <utility>

namespace ckptd {

std::unique_ptr<DirectItems> DirectItems::Create(size_t slots, uint64_t most) {
  auto reads = DirectReads::Create(slots, most);
  if (reads == nullptr) return nullptr;
  return std::unique_ptr<DirectItems>(new DirectItems(std::move(reads), slots, most));
}

bool DirectItems::Ask(const WorkItem& item, std::shared_ptr<OpenSource> source,
                      NeededRanges needed) {
  if (refused_) return false;
  asked_.push_back({item, std::move(source), needed, item.begin, {}});
  StartMore();
  // Not if the kernel refused it only now.
  if (!refused_ || !asked_.back().pieces.empty()) return true;
  asked_.pop_back();
  return false;
}

bool DirectItems::IsNext(const WorkItem& item) const {
  return !asked_.empty() && asked_.front().item.file == item.file &&
         asked_.front().item.begin == item.begin;
}

std::optional<SourceRange> DirectItems::NextPiece(Asked& asked) const {
  if (!asked.needed.has_value()) {
    if (asked.next == asked.item.end) return std::nullopt;
    return SourceRange{asked.next, std::min(asked.item.end - asked.next, most_) + asked.next};
  }
  std::span<const SourceRange>& left = *asked.needed;
  while (!left.empty() && left.front().end <= asked.next) left = left.subspan(1);
  if (left.empty()) return std::nullopt;
  SourceRange piece;
  piece.begin = std::max(left.front().begin, asked.next);
  // Short gaps are read along: a read costs as much as a MiB does.
  for (const SourceRange& range : left) {
    if (range.begin >= piece.begin + most_) break;
    piece.end = std::min(range.end, piece.begin + most_);
  }
  return piece;
}

// In the order in which it will be used.
void DirectItems::StartMore() {
  for (Asked& asked : asked_) {
    while (HasRoom()) {
      const auto piece = NextPiece(asked);
      if (!piece.has_value()) break;
      refused_ = !Start(asked, *piece);
    }
  }
}

bool DirectItems::Start(Asked& asked, const SourceRange& range) {
  const auto slot = reads_->Start(asked.source->direct.get(), range.begin, range.end);
  if (!slot.has_value()) return false;
  asked.pieces.push_back({range, *slot});
  asked.next = range.end;
  ++taken_;
  return true;
}

void DirectItems::DropFirstPiece() {
  std::deque<Piece>& pieces = asked_.front().pieces;
  reads_->Release(pieces.front().slot);
  pieces.pop_front();
  --taken_;
}

bool DirectItems::Begin(NeededRanges needed) {
  Asked& asked = asked_.front();
  asked.needed = needed;
  if (!needed.has_value()) return !From(asked.item.begin).empty();
  return needed->empty() || !From(needed->front().begin).empty();
}

// What is here from `offset` on, in the piece that has it; empty: none has, or it failed.
std::span<const std::byte> DirectItems::From(uint64_t offset) {
  std::deque<Piece>& pieces = asked_.front().pieces;
  StartMore();
  while (!pieces.empty() && pieces.front().range.end <= offset) {
    DropFirstPiece();
    StartMore();
  }
  if (pieces.empty() || pieces.front().range.begin > offset) return {};
  const std::span<const std::byte> data = reads_->Wait(pieces.front().slot);
  return data.empty() ? data : data.subspan(offset - pieces.front().range.begin);
}

std::span<const std::byte> DirectItems::Get(uint64_t offset, std::span<std::byte> room) {
  size_t have = 0;
  while (true) {
    std::span<const std::byte> part = From(offset + have);
    if (part.empty()) return {};
    part = part.first(std::min(part.size(), room.size() - have));
    if (part.size() == room.size()) return part;
    std::copy(part.begin(), part.end(), room.begin() + static_cast<ptrdiff_t>(have));
    have += part.size();
    if (have == room.size()) return room;
  }
}

void DirectItems::End() {
  while (!asked_.front().pieces.empty()) DropFirstPiece();
  asked_.pop_front();
  StartMore();
}

}  // namespace ckptd
