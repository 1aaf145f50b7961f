#include "server/protocol/reading.h"

#include <map>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

absl::StatusOr<ReaderPolicy> ParseReaderPolicy(std::string_view text) {
  if (text == "rank0") return ReaderPolicy::kRank0;
  if (text == "per_node") return ReaderPolicy::kPerNode;
  if (text == "all") return ReaderPolicy::kAll;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   fmt::format("checking --reader {}: use rank0, per_node or all", text));
}

absl::StatusOr<IoMode> ParseIoMode(std::string_view text) {
  if (text == "auto") return IoMode::kAuto;
  if (text == "map") return IoMode::kMap;
  if (text == "buffer") return IoMode::kBuffer;
  if (text == "direct") return IoMode::kDirect;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   fmt::format("checking --read {}: use auto, map, buffer or direct", text));
}

absl::StatusOr<CommChoice> ParseCommChoice(std::string_view text) {
  if (text == "auto") return CommChoice::kAuto;
  if (text == "host") return CommChoice::kHost;
  if (text == "nccl") return CommChoice::kNccl;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   fmt::format("checking --comm {}: use auto, host or nccl", text));
}

std::vector<ReaderShare> ShareReading(ReaderPolicy policy, const std::vector<uint32_t>& ranks,
                                      const std::vector<std::string>& hosts) {
  std::vector<ReaderShare> shares;
  if (ranks.empty()) return shares;
  if (policy == ReaderPolicy::kRank0) {
    shares.push_back({0, 0, 1, ranks});
  } else if (policy == ReaderPolicy::kAll) {
    const auto parts = static_cast<uint32_t>(ranks.size());
    for (uint32_t part = 0; part < parts; ++part) shares.push_back({ranks[part], part, parts, ranks});
  } else {
    std::map<std::string, size_t> share_of;  // ranks ascend: the first of a host reads
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto [at, first] = share_of.try_emplace(hosts[i], shares.size());
      if (first) shares.push_back({ranks[i], 0, 1, {}});
      shares[at->second].targets.push_back(ranks[i]);
    }
  }
  return shares;
}

ReadReport Counted(const ReadReport& begun, const TransferProgress& counters) {
  ReadReport report = begun;
  report.read = counters.read();
  report.exchanges = counters.exchanges.load(std::memory_order_relaxed);
  report.busy = counters.busy.load(std::memory_order_relaxed);
  report.slowest_file = counters.files.Slowest(Clock::now());
  for (size_t i = 0; i < report.filled.size(); ++i) {
    report.filled[i].bytes = counters.done[i].load(std::memory_order_relaxed);
  }
  return report;
}

void ReadProgressPublisher::Begin(const std::string& name, ReadReport begun,
                       std::shared_ptr<const TransferProgress> counters) {
  MutexLock lock(mutex_);
  name_ = name;
  begun_ = std::move(begun);
  counters_ = std::move(counters);
  ended_ = false;
}

void ReadProgressPublisher::End(const std::string& name, bool done) {
  MutexLock lock(mutex_);
  if (name != name_) return;
  ended_ = done;
  if (!done) counters_ = nullptr;
}

void ReadProgressPublisher::NoteDelivered(const ReadingNow& now) {
  MutexLock lock(mutex_);
  if (ended_ && now.ended && now.name == name_) counters_ = nullptr;
}

std::optional<ReadingNow> ReadProgressPublisher::Now() const {
  MutexLock lock(mutex_);
  if (counters_ == nullptr) return std::nullopt;
  return ReadingNow{name_, Counted(begun_, *counters_), ended_};
}

}  // namespace ckptd
