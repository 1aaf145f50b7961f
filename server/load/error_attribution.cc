#include "server/load/error_attribution.h"

#include <charconv>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

Attribution Attribute(uint32_t rank, const absl::Status& status) {
  const Facts facts = FactsOf(status);
  const std::string why = ReasonOf(status);
  const std::string number = std::to_string(rank);
  const auto named = facts.find("rank");
  const bool names_none = named == facts.end();
  // A rank that has lost another one is there itself.
  const bool itself = names_none || named->second == number;
  Attribution out;
  out.status = names_none ? WithFact(WithContext(status, "rank " + number), "rank", number) : status;
  out.rank_is_lost =
      itself && status.code() == absl::StatusCode::kUnavailable && why == reason::kRankLost;
  out.may_be_deadline = why == reason::kRankLost ||
                        (names_none && status.code() == absl::StatusCode::kDeadlineExceeded);
  out.may_be_epoch = why == reason::kEpochChanged;
  return out;
}

std::optional<uint32_t> RankNamedBy(const absl::Status& status, size_t ranks) {
  const Facts facts = FactsOf(status);
  const auto named = facts.find("rank");
  if (named == facts.end()) return std::nullopt;
  const std::string& text = named->second;
  uint32_t rank = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (parsed.ec != std::errc() || rank >= ranks) return std::nullopt;
  return rank;
}

}  // namespace ckptd
