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
  const IoMode way = files_.WayOf(**source, item);
  found_ahead_.push_back({item.file, item.begin, way});
  if (way != IoMode::kDirect) return false;
  return AskDirect(item, *std::move(source), std::nullopt) && direct_->HasRoom();
}

// Looking at the page cache takes microseconds: what was found ahead still counts.
IoMode BlockReader::WayOf(const OpenSource& source, const WorkItem& item) {
  while (!found_ahead_.empty()) {
    const FoundAhead found = found_ahead_.front();
    found_ahead_.pop_front();
    if (found.file == item.file && found.begin == item.begin) return found.way;
  }
  return files_.WayOf(source, item);
}

bool BlockReader::AskDirect(const WorkItem& item, std::shared_ptr<OpenSource> source,
                            NeededRanges needed) {
  if (most_ahead_ > 0 && !tried_direct_) {
    tried_direct_ = true;
    direct_ = DirectItems::Create(most_ahead_, kItemBytes);
  }
  return direct_ != nullptr && direct_->Ask(item, std::move(source), needed);
}

absl::Status BlockReader::Begin(const WorkItem& item, bool elsewhere, NeededRanges needed) {
  CKPTD_ASSIGN_OR_RETURN(source_, files_.Acquire(item.file));
  item_ = item;
  way_ = WayOf(*source_, item);
  const bool asked = direct_ != nullptr && direct_->IsNext(item);
  if (asked) way_ = IoMode::kDirect;
  if (way_ == IoMode::kDirect) {
    const bool others = direct_ != nullptr && !direct_->none_asked();
    if (asked || (!others && AskDirect(item, source_, needed))) {
      if (direct_->Begin(needed)) return absl::OkStatus();
      direct_->End();
    }
  }
  if (way_ == IoMode::kMap) {  // cached
    if (files_.MayBuffer() && (elsewhere || BetterCopied(item))) way_ = IoMode::kBuffer;
    return absl::OkStatus();
  }
  ReadByBuffer(item);
  return absl::OkStatus();
}

void BlockReader::ReadByBuffer(const WorkItem& rest) {
  way_ = IoMode::kBuffer;
  if (!files_.Cached(*source_, rest)) ReadAhead(*source_, rest.begin);
}

bool BlockReader::BetterCopied(const WorkItem& item) {
  const std::span<const std::byte> mapping = source_->mapping.span();
  if (mapping.size() < kLeastProbedFile) return false;
  return probe_.Slow(mapping.subspan(item.begin, item.end - item.begin));
}

absl::Status BlockReader::Use(uint64_t offset, size_t bytes,
                              absl::FunctionRef<void(std::span<const std::byte>)> use) {
  if (way_ == IoMode::kMap) return UseMapped(offset, bytes, use);
  const std::span<std::byte> buffer(buffer_.get(), bytes);
  if (way_ == IoMode::kDirect) {
    const std::span<const std::byte> data = direct_->Get(offset, buffer);
    if (!data.empty()) {
      use(data);
      return absl::OkStatus();
    }
    direct_->End();
    WorkItem rest = item_;
    rest.begin = offset;
    ReadByBuffer(rest);
  }
  CKPTD_RETURN_IF_ERROR(source_->object->ReadAt(offset, buffer));
  use(buffer);
  return absl::OkStatus();
}

absl::Status BlockReader::ReadTo(uint64_t offset, std::span<std::byte> place) {
  return source_->object->ReadAt(offset, place);
}

absl::Status BlockReader::UseMapped(uint64_t offset, size_t bytes,
                                    absl::FunctionRef<void(std::span<const std::byte>)> use) {
  const std::span<const std::byte> mapped(source_->mapping.data() + offset, bytes);
  if (RunGuarded(mapped, [&use, mapped] { use(mapped); })) return absl::OkStatus();
  // Reading it the other way says why.
  const std::span<std::byte> buffer(buffer_.get(), bytes);
  CKPTD_RETURN_IF_ERROR(source_->object->ReadAt(offset, buffer));
  return MakeError(absl::StatusCode::kAborted, reason::kSourceChanged,
                   fmt::format("reading {}: bytes at {} went away and came back; let the writer "
                               "finish and load again",
                               files_.path(item_.file), offset),
                   {{"file", files_.path(item_.file)}});
}

void BlockReader::End() {
  if (way_ == IoMode::kDirect) direct_->End();
  source_.reset();
  files_.ItemDone(item_.file);
}

}  // namespace ckptd
