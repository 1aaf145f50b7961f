#include "server/transfer/frame_receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/digest_board.h"
#include "server/transfer/item_copies.h"
#include "server/transfer/item_placer.h"
#include "server/transfer/schedule.h"
#include "server/transfer/slab_writer.h"

namespace ckptd {
namespace {

// The longest element that is cast. One may be spread over two pieces.
constexpr size_t kMaxElementBytes = 16;

// Hands out the payload in pieces that do not cut an element that is cast.
class PayloadReader {
 public:
  explicit PayloadReader(std::span<const std::span<const std::byte>> pieces) : pieces_(pieces) {}

  // The next bytes of the payload that lie in one piece, at most `most`. Empty at the end.
  std::span<const std::byte> Peek(uint64_t most) {
    while (!pieces_.empty() && used_ == pieces_.front().size()) {
      pieces_ = pieces_.subspan(1);
      used_ = 0;
    }
    if (pieces_.empty()) return {};
    const auto rest = pieces_.front().subspan(used_);
    return rest.first(static_cast<size_t>(std::min<uint64_t>(rest.size(), most)));
  }
  void Skip(size_t bytes) { used_ += bytes; }
  void Copy(std::span<std::byte> out) {
    while (!out.empty()) {
      const auto part = Peek(out.size());
      std::memcpy(out.data(), part.data(), part.size());
      Skip(part.size());
      out = out.subspan(part.size());
    }
  }

 private:
  std::span<const std::span<const std::byte>> pieces_;
  size_t used_ = 0;  // bytes used of the first piece
};

}  // namespace

struct FrameReceiver::Parts {
  std::shared_ptr<const CheckpointIndex> index;
  RankPlan plan;
  std::array<TransferTarget, 1> target;
  Schedule schedule;
  std::vector<SlabMap> slabs;
  std::unique_ptr<DigestBoard> board;
};

// The objects that a thread needs to place a frame.
struct FrameReceiver::Lane {
  Lane(const Parts& parts, SlabWriter writer)
      : slabs(std::move(writer)),
        copies(parts.schedule, parts.target, 0),
        placer(copies, parts.target, slabs, parts.board.get()) {}
  SlabWriter slabs;
  ItemCopies copies;
  ItemPlacer placer;
};

absl::StatusOr<std::unique_ptr<FrameReceiver>> FrameReceiver::Make(
    std::shared_ptr<const CheckpointIndex> index, RankPlan plan, const SlabView& slab,
    bool digests) {
  auto parts = std::make_unique<Parts>();
  parts->index = std::move(index);
  parts->plan = std::move(plan);
  parts->target[0] = {&parts->plan, slab, nullptr};
  CKPTD_ASSIGN_OR_RETURN(parts->schedule, BuildSchedule(*parts->index, parts->target));
  parts->slabs.emplace_back(slab);
  if (digests) parts->board = std::make_unique<DigestBoard>(parts->target, parts->slabs);
  // A view of device memory keeps it allocated. This object must not do that once the load has
  // failed.
  parts->target[0].slab = {};
  return std::unique_ptr<FrameReceiver>(new FrameReceiver(std::move(parts)));
}

FrameReceiver::FrameReceiver(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)), claimed_(parts_->index->files.size()) {}

FrameReceiver::~FrameReceiver() = default;

Facts FrameReceiver::FactsOfFrame(const FrameHeader& header) const {
  const auto& files = parts_->index->files;
  return {{"file", header.file < files.size() ? files[header.file].path
                                              : fmt::format("file {}", header.file)},
          {"offset", std::to_string(header.begin)},
          {"rank", std::to_string(parts_->plan.rank)}};
}

absl::Status FrameReceiver::Refuse(const FrameHeader& header, const std::string& why) const {
  const Facts facts = FactsOfFrame(header);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kTransferInvalid,
                   fmt::format("receiving bytes {} to {} of {} for rank {}: {}; nothing was "
                               "published, run the same ckptd on every rank and load again",
                               header.begin, header.end, facts.at("file"), facts.at("rank"), why),
                   facts);
}

absl::Status FrameReceiver::Corrupt(const FrameHeader& header, const ItemCopies& copies) const {
  Facts facts = FactsOfFrame(header);
  const std::string& first = copies.TensorAt(header.begin);
  const std::string& last = copies.TensorAt(header.end - 1);
  facts["tensor"] = first;
  return MakeError(absl::StatusCode::kDataLoss, reason::kTransferCorrupt,
                   fmt::format("receiving bytes {} to {} of {} for rank {} ({}): their checksum is "
                               "not the sender's; nothing was published, load again, and if it "
                               "happens again look at the network and memory of both hosts",
                               header.begin, header.end, facts.at("file"), facts.at("rank"),
                               first == last ? "tensor " + first
                                             : fmt::format("tensors {} to {}", first, last)),
                   facts);
}

absl::Status FrameReceiver::Check(const FrameHeader& header, uint64_t bytes) const {
  const auto& files = parts_->index->files;
  if (header.file >= files.size()) return Refuse(header, "the source has no such file");
  if (header.begin >= header.end || header.end > files[header.file].bytes) {
    return Refuse(header, "the file has no such range");
  }
  if (bytes == 0 || bytes > kMaxFrameBytes) {
    return Refuse(header, fmt::format("a frame cannot have {} bytes", bytes));
  }
  return absl::OkStatus();
}

// No byte may come twice, not even from different readers.
absl::Status FrameReceiver::Claim(const FrameHeader& header) {
  std::map<uint64_t, uint64_t>& ranges = claimed_[header.file];
  uint64_t begin = header.begin;
  uint64_t end = header.end;
  auto next = ranges.lower_bound(begin);
  if (next != ranges.end() && next->first < end) return Refuse(header, "they came before");
  if (next != ranges.begin()) {
    const auto before = std::prev(next);
    if (before->second > begin) return Refuse(header, "they came before");
    if (before->second == begin) {
      begin = before->first;
      ranges.erase(before);
    }
  }
  if (next != ranges.end() && next->first == end) {
    end = next->second;
    ranges.erase(next);
  }
  ranges[begin] = end;
  return absl::OkStatus();
}

absl::Status FrameReceiver::Take(const FrameHeader& header,
                                 std::span<const std::span<const std::byte>> pieces) {
  uint64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  absl::Status status = Check(header, bytes);
  std::unique_ptr<Lane> lane;
  {
    MutexLock lock(mutex_);
    if (closed_ || !error_.ok()) return Refuse(header, "this load accepts no more bytes");
    if (status.ok()) status = Claim(header);
    if (!status.ok()) {
      error_ = status;
      return status;
    }
    ++busy_;
    if (!lanes_.empty()) {
      lane = std::move(lanes_.back());
      lanes_.pop_back();
    }
  }
  uint64_t placed[1] = {0};
  if (lane == nullptr) {
    absl::StatusOr<SlabWriter> slabs = SlabWriter::Open(parts_->slabs);
    status = slabs.status();
    if (status.ok()) lane = std::make_unique<Lane>(*parts_, *std::move(slabs));
  }
  if (status.ok()) status = Place(*lane, header, pieces);
  if (status.ok()) status = lane->placer.Finish(placed);
  if (status.ok()) status = lane->slabs.Finish();
  MutexLock lock(mutex_);
  placed_ += placed[0];
  if (error_.ok()) error_ = status;
  // After an error, staging memory goes back to the other loads.
  if (!error_.ok()) lanes_.clear();
  if (lane != nullptr && error_.ok()) lanes_.push_back(std::move(lane));
  if (--busy_ == 0) idle_.NotifyAll();
  return status;
}

absl::Status FrameReceiver::Place(Lane& lane, const FrameHeader& header,
                                  std::span<const std::span<const std::byte>> pieces) {
  ItemCopies& copies = lane.copies;
  CKPTD_RETURN_IF_ERROR(
      copies.Begin(ItemIn(parts_->schedule, header.file, header.begin, header.end)));
  uint64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  if (copies.needed_bytes() != bytes) {
    return Refuse(header, fmt::format("{} bytes came, and the plan needs {}", bytes,
                                      copies.needed_bytes()));
  }
  if (!copies.CutsNoElement()) return Refuse(header, "an element is cut");
  lane.placer.Begin();
  PayloadReader payload(pieces);
  Xxh3Stream checksum;
  for (const SourceRange& range : copies.ranges()) {
    for (uint64_t at = range.begin; at < range.end;) {
      auto part = payload.Peek(range.end - at);
      const uint64_t end = copies.CutAtElement(at + part.size(), range.end);
      std::byte element[kMaxElementBytes];
      if (end > at) {
        part = part.first(static_cast<size_t>(end - at));
        payload.Skip(part.size());
      } else {
        // The first element that ends past this piece begins in it.
        uint64_t whole = at + part.size();
        while (copies.CutAtElement(whole, range.end) == at) ++whole;
        const std::span<std::byte> gathered(element, static_cast<size_t>(whole - at));
        payload.Copy(gathered);
        part = gathered;
      }
      checksum.Update(part);
      lane.placer.Place(at, part);
      at += part.size();
    }
  }
  return checksum.Value() == header.checksum ? absl::OkStatus() : Corrupt(header, copies);
}

uint64_t FrameReceiver::placed_bytes() const {
  MutexLock lock(mutex_);
  return placed_;
}

absl::Status FrameReceiver::Close(std::chrono::nanoseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(patience);
  MutexLock lock(mutex_);
  closed_ = true;
  lanes_.clear();
  const bool idle = idle_.WaitUntil(
      mutex_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return busy_ == 0; });
  if (idle) return error_;
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("receiving for rank {}: {} frames are still being placed; load "
                               "again",
                               parts_->plan.rank, busy_));
}

absl::StatusOr<std::vector<uint64_t>> FrameReceiver::Digests() const {
  if (parts_->board == nullptr) return std::vector<uint64_t>();
  CKPTD_ASSIGN_OR_RETURN(auto digests, parts_->board->Combine());
  return std::move(digests.front());
}

}  // namespace ckptd
