#include "server/transfer/block_reader.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/sigbus_guard.h"

namespace ckptd {

bool BlockReader::Ahead(const WorkItem& item) {
  auto source = files_.Acquire(item.file);
  // Begin says what is wrong.
  if (!source.ok()) return false;
  const ReadWay way = files_.WayOf(**source, item);
  found_ahead_.push_back({item.file, item.begin, way});
  if (way != ReadWay::kDirect) return false;
  return Start(item, *std::move(source)) && started_.size() < most_ahead_;
}

// Looking at the page cache takes microseconds: what was found ahead still counts.
ReadWay BlockReader::WayOf(const OpenSource& source, const WorkItem& item) {
  while (!found_ahead_.empty()) {
    const FoundAhead found = found_ahead_.front();
    found_ahead_.pop_front();
    if (found.file == item.file && found.begin == item.begin) return found.way;
  }
  return files_.WayOf(source, item);
}

bool BlockReader::Start(const WorkItem& item, std::shared_ptr<OpenSource> source) {
  if (most_ahead_ > 0 && !tried_direct_) {
    tried_direct_ = true;
    direct_ = DirectReads::Create(most_ahead_, kItemBytes);
  }
  if (direct_ == nullptr) return false;
  const auto slot = direct_->Start(source->direct.get(), item.begin, item.end);
  if (!slot.has_value()) return false;
  started_.push_back({item, std::move(source), *slot});
  return true;
}

absl::Status BlockReader::Begin(const WorkItem& item, bool elsewhere) {
  CKPTD_ASSIGN_OR_RETURN(source_, files_.Acquire(item.file));
  file_ = item.file;
  begin_ = item.begin;
  const auto begun = [&] {
    return !started_.empty() && started_.front().item.file == item.file &&
           started_.front().item.begin == item.begin;
  };
  way_ = WayOf(*source_, item);
  if (begun()) way_ = ReadWay::kDirect;
  if (way_ == ReadWay::kDirect && (begun() || (started_.empty() && Start(item, source_)))) {
    slot_ = started_.front().slot;
    started_.pop_front();
    direct_data_ = direct_->Wait(*slot_);
    if (!direct_data_.empty()) return absl::OkStatus();
    direct_->Release(*slot_);
    slot_.reset();
  }
  if (way_ == ReadWay::kMap) {  // cached
    if (files_.MayBuffer() && (elsewhere || BetterCopied(item))) way_ = ReadWay::kBuffer;
    return absl::OkStatus();
  }
  if (way_ == ReadWay::kDirect) way_ = ReadWay::kBuffer;
  if (!files_.Cached(*source_, item)) ReadAhead(*source_, item.begin);
  return absl::OkStatus();
}

bool BlockReader::BetterCopied(const WorkItem& item) {
  const std::span<const std::byte> mapping = source_->mapping.span();
  if (mapping.size() < kLeastProbedFile) return false;
  return probe_.Slow(mapping.subspan(item.begin, item.end - item.begin));
}

absl::Status BlockReader::Use(uint64_t offset, size_t bytes,
                              absl::FunctionRef<void(std::span<const std::byte>)> use) {
  if (way_ == ReadWay::kMap) return UseMapped(offset, bytes, use);
  if (way_ == ReadWay::kDirect) {
    use(direct_data_.subspan(offset - begin_, bytes));
    return absl::OkStatus();
  }
  const std::span<std::byte> buffer(buffer_.get(), bytes);
  CKPTD_RETURN_IF_ERROR(source_->file.Read(offset, buffer, files_.path(file_)));
  use(buffer);
  return absl::OkStatus();
}

absl::Status BlockReader::ReadTo(uint64_t offset, std::span<std::byte> place) {
  return source_->file.Read(offset, place, files_.path(file_));
}

absl::Status BlockReader::UseMapped(uint64_t offset, size_t bytes,
                                    absl::FunctionRef<void(std::span<const std::byte>)> use) {
  const std::span<const std::byte> mapped(source_->mapping.data() + offset, bytes);
  if (RunGuarded(mapped, [&use, mapped] { use(mapped); })) return absl::OkStatus();
  // Reading it the other way says why.
  const std::span<std::byte> buffer(buffer_.get(), bytes);
  CKPTD_RETURN_IF_ERROR(source_->file.Read(offset, buffer, files_.path(file_)));
  return MakeError(absl::StatusCode::kAborted, reason::kSourceChanged,
                   fmt::format("reading {}: bytes at {} went away and came back; let the writer "
                               "finish and load again",
                               files_.path(file_), offset),
                   {{"file", files_.path(file_)}});
}

void BlockReader::End() {
  if (slot_.has_value()) direct_->Release(*slot_);
  slot_.reset();
  direct_data_ = {};
  source_.reset();
  files_.ItemDone(file_);
}

}  // namespace ckptd
