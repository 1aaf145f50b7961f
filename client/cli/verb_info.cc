#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>

#include "client/cli/all_ranks.h"
#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/output.pb.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

std::string MemoryLine(const v1::MemoryInfo& memory) {
  if (!memory.device_uuid().empty()) {
    const std::string pristine =
        memory.host_tier_bytes() == 0
            ? ""
            : fmt::format(", host tier {} of {}", HumanBytes(memory.host_tier_used_bytes()),
                          HumanBytes(memory.host_tier_bytes()));
    return fmt::format("{} of {} used, {} of host memory for staging{}",
                       HumanBytes(memory.used_bytes()), HumanBytes(memory.budget_bytes()),
                       HumanBytes(memory.staging_bytes()), pristine);
  }
  const std::string target = memory.arena_target_bytes() > memory.arena_bytes()
                                 ? ", filling to " + HumanBytes(memory.arena_target_bytes())
                                 : "";
  return fmt::format("{} of {} used, arena {}{} ({} in huge pages), {} lingering",
                     HumanBytes(memory.used_bytes()), HumanBytes(memory.budget_bytes()),
                     HumanBytes(memory.arena_bytes()), target,
                     HumanBytes(memory.huge_page_bytes()), HumanBytes(memory.lingering_bytes()));
}

// The arena's target size, and the reason.
std::string ArenaLine(const v1::MemoryInfo& memory) {
  if (memory.arena_why().empty()) return "";
  return fmt::format("{}: {}", HumanBytes(memory.arena_target_bytes()), memory.arena_why());
}

std::string KeeperLine(const v1::GetDaemonInfoResponse& info) {
  if (!info.has_keeper()) return "";
  const v1::KeeperInfo& keeper = info.keeper();
  return fmt::format("{}{}: {} checkpoints, {} leases", keeper.endpoint(),
                     keeper.connected() ? "" : " (does not answer)", keeper.checkpoint_count(),
                     keeper.lease_count());
}

void PrintMembers(const v1::GetDaemonInfoResponse& info, std::ostream& out) {
  Table table({{"RANK", Table::Align::kRight},
               {"JOINED"},
               {"HOST"},
               {"PID", Table::Align::kRight},
               {"HEARD", Table::Align::kRight},
               {"ADDRESS"}});
  for (const v1::MemberInfo& member : info.members()) {
    table.AddRow({std::to_string(member.rank()), member.joined() ? "yes" : "no", member.host(),
                  member.joined() ? std::to_string(member.pid()) : "",
                  member.joined() ? HumanDuration(SecondsOf(member.since_heartbeat())) + " ago" : "",
                  member.address()});
  }
  out << '\n';
  table.Print(out);
}

void PrintInfo(const v1::GetDaemonInfoResponse& info, bool config, Context& context) {
  std::ostream& out = context.io.out;
  const std::string tier =
      info.memory().why().empty() ? info.memory().tier()
                              : fmt::format("{} ({})", info.memory().tier(), info.memory().why());
  PrintFields({{"state", info.state()},
               {"detail", info.detail()},
               {"version", info.version()},
               {"job", info.job()},
               {"rank", fmt::format("{} of {}", info.rank(), info.world_size())},
               {"epoch", std::to_string(info.epoch())},
               {"pid", std::to_string(info.pid())},
               {"up", Age(info.start_time(), context.io.now())},
               {"tier", tier},
               {"memory", MemoryLine(info.memory())},
               {"arena", ArenaLine(info.memory())},
               {"checkpoints", std::to_string(info.checkpoint_count())},
               {"leases", std::to_string(info.lease_count())},
               {"keeper", KeeperLine(info)},
               {"workload socket", info.workload_socket()},
               {"fd socket", info.fd_socket()},
               {"peer address", info.peer_address()}},
              out);
  for (const std::string& one : info.keeper().dropped()) out << "dropped: " << one << '\n';
  if (!info.members().empty()) PrintMembers(info, out);
  if (!config) return;
  Table table({{"KEY"}, {"VALUE"}});
  const std::map<std::string, std::string> sorted(info.config().begin(), info.config().end());
  for (const auto& entry : sorted) table.AddRow({entry.first, entry.second});
  out << '\n';
  table.Print(out);
}

absl::StatusOr<int> RunInfo(bool config, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const v1::GetDaemonInfoResponse info, admin.Info());
  if (context.json()) {
    CKPTD_RETURN_IF_ERROR(PrintJson(info, context.io.out));
  } else {
    PrintInfo(info, config, context);
  }
  return kExitFine;
}

void PrintLeases(const RankLeasesOutput& leases, bool all_ranks, Context& context) {
  Table table({{all_ranks ? "RANK LEASE" : "LEASE"},
               {"MODE"},
               {"PID", Table::Align::kRight},
               {"UID", Table::Align::kRight},
               {"CONNECTED"},
               {"AGE", Table::Align::kRight}});
  for (const RankLeasesOutput::Rank& rank : leases.ranks()) {
    const std::string prefix = all_ranks ? fmt::format("{:<4} ", rank.rank()) : "";
    for (const v1::Lease& lease : rank.leases()) {
      table.AddRow({prefix + lease.name(), NameOf(lease.mode()),
                    lease.pid() == 0 ? "-" : std::to_string(lease.pid()),
                    std::to_string(lease.uid()), lease.connected() ? "yes" : "no",
                    Age(lease.create_time(), context.io.now())});
    }
  }
  table.Print(context.io.out);
}

absl::StatusOr<int> RunLeases(bool all_ranks, Context& context) {
  RankLeasesOutput leases;
  v1::ListLeasesResponse found;
  const absl::Status status = ForEachRank(context, all_ranks, [&](Context& one) -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(AdminClient admin, one.ConnectAdmin());
    CKPTD_ASSIGN_OR_RETURN(found, admin.Leases());
    RankLeasesOutput::Rank& rank = *leases.add_ranks();
    rank.set_rank(one.globals.rank.value_or(0));
    *rank.mutable_leases() = found.leases();
    return absl::OkStatus();
  });
  if (leases.ranks().empty()) return status;
  if (!context.json()) {
    PrintLeases(leases, all_ranks, context);
  } else if (all_ranks) {
    CKPTD_RETURN_IF_ERROR(PrintJson(leases, context.io.out));
  } else {
    CKPTD_RETURN_IF_ERROR(PrintJson(found, context.io.out));
  }
  CKPTD_RETURN_IF_ERROR(status);
  return kExitFine;
}

absl::StatusOr<int> RunVersion(Context& context) {
  if (context.json()) {
    VersionOutput output;
    output.set_version(CKPTD_VERSION);
    CKPTD_RETURN_IF_ERROR(PrintJson(output, context.io.out));
  } else {
    context.io.out << "ckptctl " << CKPTD_VERSION << '\n';
  }
  return kExitFine;
}

}  // namespace

void AddInfo(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "info", "Show a daemon's state, memory, group and settings",
                           "Examples:\n"
                           "  ckptctl info\n"
                           "  ckptctl info --rank 3 --config\n");
  auto config = std::make_shared<bool>(false);
  verb->add_flag("--config", *config, "Also the effective settings");
  verb->callback([config, &context] {
    context.action = [config, &context] { return RunInfo(*config, context); };
  });
}

void AddLeases(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "leases", "List who holds which shard",
                           "Examples:\n"
                           "  ckptctl leases --output json\n"
                           "  ckptctl leases --all-ranks\n");
  auto all_ranks = std::make_shared<bool>(false);
  AddAllRanks(*verb, *all_ranks);
  verb->callback([all_ranks, &context] {
    context.action = [all_ranks, &context] { return RunLeases(*all_ranks, context); };
  });
}

void AddVersion(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "version", "Print the version of ckptctl",
                           "Example:\n"
                           "  ckptctl version\n");
  verb->callback([&context] { context.action = [&context] { return RunVersion(context); }; });
}

}  // namespace ckptd::cli
