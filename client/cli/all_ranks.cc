#include "client/cli/all_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

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

// The rank of "rank-3.sock" and "rank-3.admin.sock".
std::optional<uint32_t> RankOfSocket(const std::string& name) {
  constexpr std::string_view kStart = "rank-";
  if (name.rfind(kStart, 0) != 0) return std::nullopt;
  uint32_t rank = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kStart.size(), end, rank);
  const std::string_view rest(parsed.ptr, static_cast<size_t>(end - parsed.ptr));
  if (parsed.ec != std::errc() || (rest != ".sock" && rest != ".admin.sock")) return std::nullopt;
  return rank;
}

std::set<uint32_t> SocketsIn(const std::filesystem::path& folder) {
  std::set<uint32_t> ranks;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (const auto rank = RankOfSocket(at->path().filename().string())) ranks.insert(*rank);
  }
  return ranks;
}

std::string HostOf(const v1::GetDaemonInfoResponse& info, uint32_t rank) {
  for (const v1::MemberInfo& member : info.members()) {
    if (member.rank() == static_cast<int32_t>(rank)) return member.host();
  }
  return "";
}

// Whether a rank without a socket here may be on another host. Only rank 0 knows all hosts.
bool IsOnOtherHost(const v1::GetDaemonInfoResponse& info, uint32_t rank) {
  if (info.rank() != 0) return true;
  const std::string own = HostOf(info, 0);
  const std::string host = HostOf(info, rank);
  if (!host.empty()) return host != own;
  const auto& members = info.members();
  return std::any_of(members.begin(), members.end(), [&own](const v1::MemberInfo& one) {
    return !one.host().empty() && one.host() != own;
  });
}

// All ranks of the group. Without an address, only those with sockets in the job's folder.
absl::StatusOr<std::vector<uint32_t>> ChosenRanks(const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(const Address first, ForRank(context, 0).ResolvedAddress());
  std::set<uint32_t> here;
  const std::filesystem::path folder = std::filesystem::path(first.path).parent_path();
  if (first.chosen_by == "the default") here = SocketsIn(folder);
  const bool some = !here.empty();
  if (!some) here.insert(0);  // it reports what is wrong with its address
  CKPTD_ASSIGN_OR_RETURN(const v1::GetDaemonInfoResponse info, InfoOfAny(context, here));
  std::vector<uint32_t> meant;
  size_t elsewhere = 0;
  for (uint32_t rank = 0; rank < static_cast<uint32_t>(std::max(info.world_size(), 1)); ++rank) {
    if (some && here.count(rank) == 0 && IsOnOtherHost(info, rank)) {
      ++elsewhere;
    } else {
      meant.push_back(rank);
    }
  }
  if (elsewhere > 0) {
    context.Note(fmt::format("{} of {} ranks have their sockets on other hosts: run "
                             "this there, too",
                             elsewhere, info.world_size()));
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
  CKPTD_ASSIGN_OR_RETURN(const std::vector<uint32_t> ranks, ChosenRanks(context));
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
