#include "server/load/transport_choice.h"

#include <algorithm>

#include <fmt/format.h>

namespace ckptd {
namespace {

std::string WhyNoComm(const TransportFacts& facts) {
  if (facts.asked != CommChoice::kAuto || facts.communicator.empty()) return "";
  if (facts.failed_before) return "NCCL exchanged nothing before";
  if (!facts.busy_rank.has_value()) return "";
  return fmt::format("a client holds a shard of rank {}, and NCCL is not put beside what its GPU "
                     "may be doing unless --comm nccl asks for it",
                     *facts.busy_rank);
}

bool OnOneHost(const std::vector<TransportFacts::Rank>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const auto& one) { return one.host == ranks.front().host; });
}

// With several readers each would have to reach every rank, so all bytes go one way.
TransportChoice ChooseForSeveralReaders(const TransportFacts& facts) {
  if (OnOneHost(facts.ranks)) return {CommChoice::kHost, "", ""};
  const std::string& own = facts.communicator;
  for (const TransportFacts::Rank& one : facts.ranks) {
    if (!own.empty() && one.communicator == own) continue;
    return {CommChoice::kHost, "",
            fmt::format("readers on several hosts send in streams: rank {} has {}, rank 0 {}",
                        one.rank, one.communicator.empty() ? one.no_communicator : one.communicator,
                        own.empty() ? facts.no_communicator : own)};
  }
  return {CommChoice::kNccl, "", fmt::format("readers on several hosts send by {}", own)};
}

}  // namespace

TransportChoice ChooseTransport(const TransportFacts& facts) {
  if (std::string why = WhyNoComm(facts); !why.empty()) {
    return {CommChoice::kHost, std::move(why), ""};
  }
  // A single reader finds out by itself whom it can reach.
  if (facts.asked != CommChoice::kAuto || facts.one_reader) return {facts.asked, "", ""};
  return ChooseForSeveralReaders(facts);
}

}  // namespace ckptd
