#include "server/protocol/scatter_call.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/plan/plan_digest.h"

namespace ckptd {
namespace {

// Larger than any group, far below what would take memory.
constexpr uint32_t kMostRanks = 1 << 20;
// Large files must not make more steps than memory holds.
constexpr uint64_t kLeastStep = 1 << 20;
constexpr uint64_t kMostStep = uint64_t{1} << 34;

void Spell(const std::vector<uint32_t>& numbers, CanonicalHasher& out) {
  out.Number(numbers.size());
  for (const uint32_t number : numbers) out.Number(number);
}

bool AllBelow(const std::vector<uint32_t>& ranks, uint32_t size) {
  return std::all_of(ranks.begin(), ranks.end(), [size](uint32_t rank) { return rank < size; });
}

}  // namespace

bool LeaderKnowsReaders(const ScatterCall& call) {
  return call.readers.size() > 1 && std::count(call.ranks.begin(), call.ranks.end(), 0) > 0;
}

std::chrono::milliseconds JoinPatience(const ScatterCall& call) {
  return std::chrono::seconds(30) + std::chrono::milliseconds(30) * call.ranks.size();
}

uint64_t ScatterDigest(const ScatterCall& call, const ScatterOrder& order, uint64_t rank_digest) {
  CanonicalHasher out;
  out.Number(order.digest);
  out.Number(call.rank);
  Spell(call.ranks, out);
  Spell(call.readers, out);
  Spell(call.replicas, out);
  out.Number(call.fanout);
  Spell(call.whole, out);
  out.Number(rank_digest);
  return out.Digest();
}

absl::Status CheckScatterCall(const ScatterCall& call) {
  const auto size = static_cast<uint32_t>(std::min<size_t>(call.ranks.size(), kMostRanks));
  const bool fits =
      size >= 2 && size == call.ranks.size() && call.rank < size && !call.readers.empty() &&
      AllBelow(call.readers, size) && AllBelow(call.replicas, size) &&
      std::is_sorted(call.replicas.begin(), call.replicas.end(), std::less_equal<>()) &&
      std::count(call.replicas.begin(), call.replicas.end(), call.rank) == 1 &&
      std::is_sorted(call.whole.begin(), call.whole.end(), std::less_equal<>()) &&
      call.fanout >= 1 && call.size.step_bytes >= kLeastStep &&
      call.size.step_bytes <= kMostStep && call.size.step_tensors >= 1;
  if (fits) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("taking part in a scatter as rank {} of a communicator of {}: the "
                               "leader's call does not fit together; run the same ckptd on every "
                               "rank",
                               call.rank, call.ranks.size()));
}

}  // namespace ckptd
