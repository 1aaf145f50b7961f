#include "client/cli/all_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace ckptd::cli {
namespace {

Context OfRank(const Context& context, uint32_t rank) {
  Context one = context;
  one.globals.rank = rank;
  return one;
}

absl::StatusOr<uint32_t> WorldSize(const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const DaemonInfo info, admin.Info());
  return static_cast<uint32_t>(std::max(info.world_size, 1));
}

absl::Status CheckAddress(const Context& context) {
  if (context.globals.rank.has_value()) {
    return UsageError("--all-ranks and --rank exclude each other");
  }
  CKPTD_ASSIGN_OR_RETURN(const Address first, OfRank(context, 0).ResolvedAddress());
  CKPTD_ASSIGN_OR_RETURN(const Address second, OfRank(context, 1).ResolvedAddress());
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
  CKPTD_ASSIGN_OR_RETURN(const uint32_t world_size, WorldSize(OfRank(context, 0)));
  absl::Status first;
  std::vector<std::string> failed;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    Context one = OfRank(context, rank);
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
