#include "client/cli/all_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "client/cli/local_ranks.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

Context ForRank(const Context& context, uint32_t rank) {
  Context one = context;
  one.globals.rank = rank;
  return one;
}

absl::StatusOr<v1::GetDaemonInfoResponse> InfoOf(const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  return admin.Info();
}

// From the first daemon that answers, because all know how large the group is.
absl::StatusOr<v1::GetDaemonInfoResponse> InfoOfAny(const Context& context, const std::set<uint32_t>& ranks) {
  absl::Status first;
  for (const uint32_t rank : ranks) {
    auto info = InfoOf(ForRank(context, rank));
    if (info.ok()) return info;
    if (first.ok()) first = info.status();
  }
  return first;
}

// How many daemons the group has on this host, as they were told. 1 if it is not known.
uint32_t LocalSize(const v1::GetDaemonInfoResponse& info) {
  uint32_t size = 1;
  const auto told = info.config().find("local-size");
  if (told == info.config().end()) return size;
  const std::string& text = told->second;
  std::from_chars(text.data(), text.data() + text.size(), size);
  return std::max(size, 1u);
}

std::string HostOf(const v1::GetDaemonInfoResponse& info, uint32_t rank) {
  for (const v1::MemberInfo& member : info.members()) {
    if (member.rank() == static_cast<int32_t>(rank)) return member.host();
  }
  return "";
}

// The ranks of this host: those with a socket, and those that lack theirs. Rank 0 knows the hosts of
// all that have joined. A launcher numbers the daemons of a host in a row.
std::set<uint32_t> RanksOfHost(const v1::GetDaemonInfoResponse& info, std::set<uint32_t> here) {
  const auto own_rank = static_cast<uint32_t>(std::max(info.rank(), 0));
  const std::string own_host = HostOf(info, own_rank);
  const uint32_t size = LocalSize(info);
  for (uint32_t rank = 0; rank < static_cast<uint32_t>(std::max(info.world_size(), 1)); ++rank) {
    const std::string host = HostOf(info, rank);
    const bool beside = host.empty() && rank / size == own_rank / size && here.size() < size;
    if (beside || (!host.empty() && host == own_host)) here.insert(rank);
  }
  return here;
}

// All ranks of the group. Without an address, only those of this host.
absl::StatusOr<std::set<uint32_t>> ChosenRanks(const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(const Address first, ForRank(context, 0).ResolvedAddress());
  std::set<uint32_t> here;
  const bool by_default = first.chosen_by == "the default";
  if (by_default) here = RanksIn(std::filesystem::path(first.path).parent_path());
  const bool some = !here.empty();
  if (!some) here.insert(0);  // it reports what is wrong with its address
  CKPTD_ASSIGN_OR_RETURN(const v1::GetDaemonInfoResponse info, InfoOfAny(context, here));
  const auto world = static_cast<uint32_t>(std::max(info.world_size(), 1));
  if (!some) {
    for (uint32_t rank = 0; rank < world; ++rank) here.insert(rank);
    return here;
  }
  const std::set<uint32_t> meant = RanksOfHost(info, here);
  if (meant.size() < world) {
    context.Note(fmt::format("{} of {} ranks have no socket on this host: run this on theirs, too",
                             world - meant.size(), world));
  }
  return meant;
}

absl::Status CheckAddress(const Context& context) {
  if (context.globals.rank.has_value()) {
    return UsageError("--all-ranks and --rank exclude each other");
  }
  CKPTD_ASSIGN_OR_RETURN(const Address first, ForRank(context, 0).ResolvedAddress());
  CKPTD_ASSIGN_OR_RETURN(const Address second, ForRank(context, 1).ResolvedAddress());
  if (first.Shown() != second.Shown()) return absl::OkStatus();
  return UsageError(fmt::format("--all-ranks: {} is the address of one daemon; write {{rank}} in it, "
                                "or leave it out",
                                first.Shown()));
}

}  // namespace

void AddAllRanks(CLI::App& verb, bool& all) {
  verb.add_flag("--all-ranks", all, "On every rank of the group whose socket is on this host");
}

absl::Status ForEachRank(const Context& context, bool all,
                         const std::function<absl::Status(Context&)>& act) {
  if (!all) {
    Context one = context;
    return act(one);
  }
  CKPTD_RETURN_IF_ERROR(CheckAddress(context));
  CKPTD_ASSIGN_OR_RETURN(const std::set<uint32_t> ranks, ChosenRanks(context));
  absl::Status first;
  std::vector<std::string> failed;
  for (const uint32_t rank : ranks) {
    Context one = ForRank(context, rank);
    const absl::Status status = act(one);
    if (status.ok()) continue;
    if (first.ok()) first = status;
    failed.push_back(fmt::format("rank {}: {}", rank, MessageOf(status)));
  }
  if (first.ok()) return first;
  return MakeError(first.code(), ReasonOf(first), fmt::format("{}", fmt::join(failed, "; ")),
                   FactsOf(first));
}

}  // namespace ckptd::cli
