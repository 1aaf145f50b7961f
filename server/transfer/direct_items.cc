#include "server/transfer/direct_items.h"

#include <algorithm>
#include <utility>

namespace ckptd {

std::unique_ptr<DirectItems> DirectItems::Create(size_t slots, uint64_t max_bytes) {
  auto reads = DirectReads::Create(slots, max_bytes);
  if (reads == nullptr) return nullptr;
  return std::unique_ptr<DirectItems>(new DirectItems(std::move(reads), slots, max_bytes));
}

bool DirectItems::Enqueue(const WorkItem& item, std::shared_ptr<OpenSource> source,
                          NeededRanges needed) {
  if (refused_) return false;
  queued_.push_back({item, std::move(source), needed, item.begin, {}});
  StartMore();
  // If the kernel has just refused the item's first read, the item is not queued.
  if (!refused_ || !queued_.back().pieces.empty()) return true;
  queued_.pop_back();
  return false;
}

bool DirectItems::IsNext(const WorkItem& item) const {
  return !queued_.empty() && queued_.front().item.file == item.file &&
         queued_.front().item.begin == item.begin;
}

std::optional<SourceRange> DirectItems::NextPiece(QueuedItem& queued) const {
  if (!queued.needed.has_value()) {
    if (queued.next == queued.item.end) return std::nullopt;
    const uint64_t bytes = std::min(queued.item.end - queued.next, max_bytes_);
    return SourceRange{queued.next, queued.next + bytes};
  }
  std::span<const SourceRange>& left = *queued.needed;
  while (!left.empty() && left.front().end <= queued.next) left = left.subspan(1);
  if (left.empty()) return std::nullopt;
  SourceRange piece;
  piece.begin = std::max(left.front().begin, queued.next);
  // Short gaps between ranges are read as well: a read costs as much as a MiB does.
  for (const SourceRange& range : left) {
    if (range.begin >= piece.begin + max_bytes_) break;
    piece.end = std::min(range.end, piece.begin + max_bytes_);
  }
  return piece;
}

// Reads are started in the order in which their bytes will be used.
void DirectItems::StartMore() {
  for (QueuedItem& queued : queued_) {
    while (HasRoom()) {
      const auto piece = NextPiece(queued);
      if (!piece.has_value()) break;
      refused_ = !Start(queued, *piece);
    }
  }
}

bool DirectItems::Start(QueuedItem& queued, const SourceRange& range) {
  const auto slot = reads_->Start(queued.source->direct.get(), range.begin, range.end);
  if (!slot.has_value()) return false;
  queued.pieces.push_back({range, *slot});
  queued.next = range.end;
  ++slots_in_use_;
  return true;
}

void DirectItems::DropFirstPiece() {
  std::deque<Piece>& pieces = queued_.front().pieces;
  reads_->Release(pieces.front().slot);
  pieces.pop_front();
  --slots_in_use_;
}

bool DirectItems::Begin(NeededRanges needed) {
  QueuedItem& queued = queued_.front();
  queued.needed = needed;
  if (!needed.has_value()) return !WaitForBytesAt(queued.item.begin).empty();
  return needed->empty() || !WaitForBytesAt(needed->front().begin).empty();
}

// The bytes from `offset` on in the piece that has them. Empty if no piece has them, or its read
// failed.
std::span<const std::byte> DirectItems::WaitForBytesAt(uint64_t offset) {
  std::deque<Piece>& pieces = queued_.front().pieces;
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
    std::span<const std::byte> part = WaitForBytesAt(offset + have);
    if (part.empty()) return {};
    part = part.first(std::min(part.size(), room.size() - have));
    if (part.size() == room.size()) return part;
    std::copy(part.begin(), part.end(), room.begin() + static_cast<ptrdiff_t>(have));
    have += part.size();
    if (have == room.size()) return room;
  }
}

void DirectItems::End() {
  while (!queued_.front().pieces.empty()) DropFirstPiece();
  queued_.pop_front();
  StartMore();
}

}  // namespace ckptd
