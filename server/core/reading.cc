#include "server/core/reading.h"

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

}  // namespace ckptd
