#include "server/transfer/block_reader.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/sigbus_guard.h"

namespace ckptd {

BlockReader::~BlockReader() {
  if (direct_ == nullptr || direct_->empty()) return;
  const StorageWatch::Call waiting = Waiting(direct_->front());
  direct_.reset();
}

bool BlockReader::Prefetch(const WorkItem& item) {
  const StorageWatch::Call waiting = Waiting(item);
  auto source = files_.Acquire(item.file);
  // Begin will report the error.
  if (!source.ok()) return false;
  const IoMode io_mode = files_.ChooseIoMode(**source, item);
  planned_reads_.push_back({item.file, item.begin, io_mode});
  if (io_mode != IoMode::kDirect) return false;
  return QueueDirect(item, *std::move(source), std::nullopt) && direct_->HasRoom();
}

// A look at the page cache takes microseconds, so the answer of Prefetch still counts.
IoMode BlockReader::ChooseIoMode(const OpenSource& source, const WorkItem& item) {
  while (!planned_reads_.empty()) {
    const PlannedRead found = planned_reads_.front();
    planned_reads_.pop_front();
    if (found.file == item.file && found.begin == item.begin) return found.io_mode;
  }
  return files_.ChooseIoMode(source, item);
}

bool BlockReader::QueueDirect(const WorkItem& item, std::shared_ptr<OpenSource> source,
                              NeededRanges needed) {
  if (max_direct_reads_ > 0 && !tried_direct_) {
    tried_direct_ = true;
    direct_ = DirectItems::Create(max_direct_reads_, kItemBytes);
  }
  return direct_ != nullptr && direct_->Enqueue(item, std::move(source), needed);
}

absl::Status BlockReader::Begin(const WorkItem& item, bool direct_to_target, NeededRanges needed) {
  const StorageWatch::Call waiting = Waiting(item);
  CKPTD_ASSIGN_OR_RETURN(source_, files_.Acquire(item.file));
  item_ = item;
  io_mode_ = ChooseIoMode(*source_, item);
  const bool queued = direct_ != nullptr && direct_->IsNext(item);
  if (queued) io_mode_ = IoMode::kDirect;
  if (io_mode_ == IoMode::kDirect) {
    const bool others = direct_ != nullptr && !direct_->empty();
    if (queued || (!others && QueueDirect(item, source_, needed))) {
      if (direct_->Begin(needed)) return absl::OkStatus();
      direct_->End();
    }
  }
  if (io_mode_ == IoMode::kMap) {  // the page cache has the item
    if (files_.AllowsBuffer() && (direct_to_target || IsFasterCopied(item))) {
      io_mode_ = IoMode::kBuffer;
    }
    return absl::OkStatus();
  }
  SwitchToBuffer(item);
  return absl::OkStatus();
}

void BlockReader::SwitchToBuffer(const WorkItem& rest) {
  io_mode_ = IoMode::kBuffer;
  if (!files_.Cached(*source_, rest)) ReadAhead(*source_, rest.begin);
}

bool BlockReader::IsFasterCopied(const WorkItem& item) {
  const std::span<const std::byte> mapping = source_->mapping.span();
  if (mapping.size() < kMinProbedFileBytes) return false;
  return probe_.IsSlow(mapping.subspan(item.begin, item.end - item.begin));
}

absl::Status BlockReader::WithBlock(uint64_t offset, size_t bytes,
                                    absl::FunctionRef<void(std::span<const std::byte>)> use) {
  if (io_mode_ == IoMode::kMap) return WithMappedBlock(offset, bytes, use);
  const std::span<std::byte> buffer(buffer_.get(), bytes);
  if (io_mode_ == IoMode::kDirect) {
    std::span<const std::byte> data;
    {
      const StorageWatch::Call waiting(files_.watch(), files_.path(item_.file), offset);
      data = direct_->Get(offset, buffer);
    }
    if (!data.empty()) {
      use(data);
      return absl::OkStatus();
    }
    direct_->End();
    WorkItem rest = item_;
    rest.begin = offset;
    SwitchToBuffer(rest);
  }
  CKPTD_RETURN_IF_ERROR(source_->object->ReadAt(offset, buffer));
  use(buffer);
  return absl::OkStatus();
}

absl::Status BlockReader::ReadTo(uint64_t offset, std::span<std::byte> place) {
  return source_->object->ReadAt(offset, place);
}

absl::Status BlockReader::WithMappedBlock(uint64_t offset, size_t bytes,
                                          absl::FunctionRef<void(std::span<const std::byte>)> use) {
  const StorageWatch::Call waiting(files_.watch(), files_.path(item_.file), offset);
  const std::span<const std::byte> mapped(source_->mapping.data() + offset, bytes);
  if (RunGuarded(mapped, [&use, mapped] { use(mapped); })) return absl::OkStatus();
  // A plain read tells what went wrong.
  const std::span<std::byte> buffer(buffer_.get(), bytes);
  CKPTD_RETURN_IF_ERROR(source_->object->ReadAt(offset, buffer));
  return MakeError(absl::StatusCode::kAborted, reason::kSourceChanged,
                   fmt::format("reading {}: bytes at {} vanished and came back; let the writer "
                               "finish and load again",
                               files_.path(item_.file), offset),
                   {{"file", files_.path(item_.file)}});
}

void BlockReader::End() {
  const StorageWatch::Call waiting = Waiting(item_);
  if (io_mode_ == IoMode::kDirect) direct_->End();
  source_.reset();
  files_.ItemDone(item_.file);
}

}  // namespace ckptd
