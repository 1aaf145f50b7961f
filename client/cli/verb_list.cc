#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "client/cli/all_ranks.h"
#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

std::string StateOf(const v1::Checkpoint& checkpoint) {
  const v1::Progress& progress = checkpoint.progress();
  if (checkpoint.state() != v1::Checkpoint::STATE_LOADING || progress.bytes_total() == 0) {
    return NameOf(checkpoint.state());
  }
  return fmt::format("LOADING {:.0f}%", static_cast<double>(progress.bytes_done()) * 100 /
                                            static_cast<double>(progress.bytes_total()));
}

// "2/4": on how many ranks the shard is resident.
std::string RanksOf(const v1::Checkpoint& checkpoint) {
  if (checkpoint.resident_ranks() == 0) return "";
  return fmt::format("{}/{}", checkpoint.resident_ranks(), checkpoint.world_size());
}

struct ListOptions {
  std::string state;
  bool failed = false;
  bool all_ranks = false;
};

void PrintList(const v1::ListCheckpointsResponse& listed, bool ranks, Context& context) {
  if (context.globals.quiet) {
    for (const v1::Checkpoint& one : listed.checkpoints()) {
      context.io.out << Escape(one.name()) << '\n';
    }
    return;
  }
  Table table({{ranks ? "RANK NAME" : "NAME"},
               {"STATE"},
               {"SIZE", Table::Align::kRight},
               {"TENSORS", Table::Align::kRight},
               {"LEASES", Table::Align::kRight},
               {"PINNED"},
               {"RANKS", Table::Align::kRight},
               {"AGE", Table::Align::kRight},
               {"LAYOUT"},
               {"SOURCE"}});
  for (const v1::Checkpoint& one : listed.checkpoints()) {
    const std::string rank = ranks ? fmt::format("{:<4} ", one.rank()) : "";
    table.AddRow({rank + one.name(), StateOf(one), HumanBytes(one.slab_bytes()),
                  std::to_string(one.tensor_count()), std::to_string(one.lease_count()),
                  one.pinned() ? "yes" : "no", RanksOf(one),
                  Age(one.create_time(), context.io.now()), one.layout(),
                  one.view().empty() ? one.source() : one.source() + " --view " + one.view()});
  }
  table.Print(context.io.out);
}

// Leaves out what the options do not ask for. Returns how many failed loads that is.
int KeepAskedFor(const ListOptions& options, v1::ListCheckpointsResponse& listed) {
  const int before = listed.checkpoints_size();
  auto& all = *listed.mutable_checkpoints();
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&options](const v1::Checkpoint& one) {
                             if (!options.state.empty()) return NameOf(one.state()) != options.state;
                             return !options.failed && one.state() == v1::Checkpoint::STATE_FAILED;
                           }),
            all.end());
  return options.state.empty() ? before - listed.checkpoints_size() : 0;
}

absl::StatusOr<int> RunList(const ListOptions& options, Context& context) {
  v1::ListCheckpointsResponse listed;
  const absl::Status status =
      ForEachRank(context, options.all_ranks, [&listed](Context& one) -> absl::Status {
        CKPTD_ASSIGN_OR_RETURN(Client client, one.Connect());
        CKPTD_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse found, client.List());
        listed.MergeFrom(found);
        return absl::OkStatus();
      });
  if (listed.checkpoints().empty()) CKPTD_RETURN_IF_ERROR(status);
  if (options.all_ranks) {  // each checkpoint tells its own
    listed.clear_rank();
    listed.clear_device_uuid();
  }
  const int failed = KeepAskedFor(options, listed);
  if (context.json()) {
    CKPTD_RETURN_IF_ERROR(PrintJson(listed, context.io.out));
  } else {
    PrintList(listed, options.all_ranks, context);
    if (failed > 0) {
      context.Note(fmt::format("{} failed load{} not shown; --failed shows {}", failed,
                               failed == 1 ? " is" : "s are", failed == 1 ? "it" : "them"));
    }
  }
  CKPTD_RETURN_IF_ERROR(status);
  return kExitFine;
}

absl::StatusOr<int> RunGet(const std::string& id, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  CKPTD_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, client.Get(CheckpointName(id)));
  CKPTD_RETURN_IF_ERROR(PrintCheckpoint(checkpoint, context));
  return kExitFine;
}

// How the bytes were read from storage.
std::string IoModesOf(const v1::ReadCounters& read) {
  const uint64_t buffered =
      read.storage_bytes() -
      std::min(read.storage_bytes(), read.mapped_bytes() + read.direct_bytes());
  std::string out;
  for (const auto& [way, bytes] : {std::pair{"mapped from the page cache", read.mapped_bytes()},
                                   std::pair{"past the page cache", read.direct_bytes()},
                                   std::pair{"through buffers", buffered}}) {
    if (bytes > 0) out += fmt::format("{}{} {}", out.empty() ? " (" : ", ", HumanBytes(bytes), way);
  }
  return out.empty() ? out : out + ")";
}

std::string SlowFileOf(const v1::Progress& progress) {
  const v1::SlowFile& file = progress.slowest_file();
  if (file.path().empty()) return "";
  return fmt::format("{} ({})", file.path(), HumanRate(file.bytes_per_second()));
}

std::string StagesOf(const v1::Progress& progress) {
  std::string out;
  for (const v1::StageTime& stage : progress.stages()) {
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {}", NameOf(stage.stage()), HumanDuration(SecondsOf(stage.duration())));
  }
  return out;
}

}  // namespace

absl::Status PrintCheckpoint(const v1::Checkpoint& one, Context& context) {
  if (context.json()) return PrintJson(one, context.io.out);
  const v1::Progress& progress = one.progress();
  const uint64_t restored = progress.restored_bytes();
  const double rate = progress.bytes_per_second();
  PrintFields(
      {{"name", one.name()},
       {"state", StateOf(one)},
       {"stage", one.state() == v1::Checkpoint::STATE_LOADING ? ProgressLine(progress) : ""},
       {"failure", one.failure().message()},
       {"source", one.source()},
       {"layout", one.layout()},
       {"view", one.view()},
       {"memory of", one.served_from()},
       {"meant for", NameOf(one.intended_mode())},
       // An older daemon does not tell.
       {"handed out as", one.handle_kind() == 0 ? "" : NameOf(one.handle_kind())},
       {"rank", fmt::format("{} of {}", one.rank(), one.world_size())},
       {"resident on", one.resident_ranks() == 0 ? "" : RanksOf(one) + " ranks"},
       {"shard", fmt::format("{}, {}", Counted(one.tensor_count(), "tensor"),
                             HumanBytes(one.slab_bytes()))},
       {"all ranks", progress.bytes_total() == 0
                         ? ""
                         : fmt::format("{}, {} of files read{}", HumanBytes(progress.bytes_done()),
                                       HumanBytes(progress.read().storage_bytes()),
                                       IoModesOf(progress.read()))},
       {"host tier", restored > 0 ? HumanBytes(restored) + " of this rank restored" : ""},
       {"transferred at", rate > 0 ? HumanRate(rate) : ""},
       {"slow file", SlowFileOf(progress)},
       {"stages", StagesOf(progress)},
       {"digests", one.digests() ? "yes" : "no"},
       {"leases", std::to_string(one.lease_count())},
       {"pinned", one.pinned() ? "yes" : "no"},
       {"age", Age(one.create_time(), context.io.now())},
       {"plan digest", one.plan_digest()},
       {"identity", one.identity()}},
      context.io.out);
  return absl::OkStatus();
}

void AddList(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "list", "List the checkpoints a daemon holds, newest first",
                           "With --quiet only their names are printed. RANKS tells on how many ranks of\n"
                           "the group a checkpoint is resident. Failed loads are kept, with the reason,\n"
                           "until 32 newer ones have ended.\n\n"
                           "Examples:\n"
                           "  ckptctl list\n"
                           "  ckptctl list --all-ranks --failed\n"
                           "  ckptctl list --state ACTIVE --quiet\n"
                           "  ckptctl list --output json | jq -r '.checkpoints[].source'\n");
  auto options = std::make_shared<ListOptions>();
  verb->add_option("--state", options->state, "Only those that are LOADING, ACTIVE, TAKEN or FAILED")
      ->transform(CLI::IsMember({"LOADING", "ACTIVE", "TAKEN", "FAILED"}, CLI::ignore_case));
  verb->add_flag("--failed", options->failed, "Also loads that failed");
  AddAllRanks(*verb, options->all_ranks);
  verb->callback([options, &context] {
    context.action = [options, &context] { return RunList(*options, context); };
  });
}

void AddGet(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "get", "Show one checkpoint",
                           "Example:\n"
                           "  ckptctl get checkpoints/3f9a12c4\n");
  auto name = std::make_shared<std::string>();
  verb->add_option("NAME", *name, "The checkpoint, as load and list name it")->required();
  verb->callback([name, &context] {
    context.action = [name, &context] { return RunGet(*name, context); };
  });
}

}  // namespace ckptd::cli
