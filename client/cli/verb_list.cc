#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/all_ranks.h"
#include "client/cli/exit_codes.h"
#include "client/cli/json_views.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

std::string Age(const std::optional<TimePoint>& time, const Context& context) {
  return time.has_value() ? HumanDuration(context.io.now() - *time) : "";
}

std::string StateOf(const CheckpointInfo& checkpoint) {
  const LoadProgress& progress = checkpoint.progress;
  if (checkpoint.state != CheckpointState::kLoading || progress.bytes_total == 0) {
    return std::string(NameOf(checkpoint.state));
  }
  return fmt::format("LOADING {:.0f}%", static_cast<double>(progress.bytes_done) * 100 /
                                            static_cast<double>(progress.bytes_total));
}

// "2/4": on how many ranks the shard is resident.
std::string RanksOf(const CheckpointInfo& checkpoint) {
  if (checkpoint.resident_ranks == 0) return "";
  return fmt::format("{}/{}", checkpoint.resident_ranks, checkpoint.world_size);
}

struct ListOptions {
  std::string state;
  bool failed = false;
  bool all_ranks = false;
};

void PrintList(const std::vector<CheckpointInfo>& checkpoints, bool ranks, Context& context) {
  if (context.globals.quiet) {
    for (const auto& checkpoint : checkpoints) context.io.out << Escape(checkpoint.name) << '\n';
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
  for (const CheckpointInfo& checkpoint : checkpoints) {
    const std::string rank = ranks ? fmt::format("{:<4} ", checkpoint.rank) : "";
    table.AddRow({rank + checkpoint.name, StateOf(checkpoint), HumanBytes(checkpoint.slab_bytes),
                  std::to_string(checkpoint.tensor_count), std::to_string(checkpoint.lease_count),
                  checkpoint.pinned ? "yes" : "no", RanksOf(checkpoint),
                  Age(checkpoint.create_time, context),
                  checkpoint.layout, checkpoint.source});
  }
  table.Print(context.io.out);
}

absl::StatusOr<int> RunList(const ListOptions& options, Context& context) {
  std::vector<CheckpointInfo> checkpoints;
  const absl::Status status =
      ForEachRank(context, options.all_ranks, [&checkpoints](Context& one) -> absl::Status {
        CKPTD_ASSIGN_OR_RETURN(Client client, one.Connect());
        CKPTD_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> found, client.List());
        checkpoints.insert(checkpoints.end(), found.begin(), found.end());
        return absl::OkStatus();
      });
  if (checkpoints.empty()) CKPTD_RETURN_IF_ERROR(status);
  std::erase_if(checkpoints, [&options](const CheckpointInfo& checkpoint) {
    return !options.state.empty() && NameOf(checkpoint.state) != options.state;
  });
  const size_t failed =
      options.failed || !options.state.empty()
          ? 0
          : std::erase_if(checkpoints, [](const CheckpointInfo& checkpoint) {
              return checkpoint.state == CheckpointState::kFailed;
            });
  if (context.json()) {
    context.io.out << ToJson(checkpoints) << '\n';
  } else {
    PrintList(checkpoints, options.all_ranks, context);
    if (failed > 0) context.Note(fmt::format("{} not shown; --failed shows {}",
                                            failed == 1 ? "1 failed load is" : fmt::format("{} failed loads are", failed),
                                            failed == 1 ? "it" : "them"));
  }
  CKPTD_RETURN_IF_ERROR(status);
  return kExitFine;
}

absl::StatusOr<int> RunGet(const std::string& id, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  CKPTD_ASSIGN_OR_RETURN(const CheckpointInfo checkpoint, client.Get(CheckpointName(id)));
  PrintCheckpoint(checkpoint, context);
  return kExitFine;
}

// How the bytes were read from storage.
std::string IoModesOf(const LoadProgress& progress) {
  const uint64_t buffered =
      progress.storage_bytes - std::min(progress.storage_bytes,
                                        progress.mapped_bytes + progress.direct_bytes);
  std::string out;
  for (const auto& [way, bytes] : {std::pair{"mapped from the page cache", progress.mapped_bytes},
                                   std::pair{"past the page cache", progress.direct_bytes},
                                   std::pair{"through buffers", buffered}}) {
    if (bytes > 0) out += fmt::format("{}{} {}", out.empty() ? " (" : ", ", HumanBytes(bytes), way);
  }
  return out.empty() ? out : out + ")";
}

std::string StagesOf(const LoadProgress& progress) {
  std::string out;
  for (const StageTime& stage : progress.stages) {
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {}", NameOf(stage.stage), HumanDuration(stage.duration));
  }
  return out;
}

}  // namespace

void PrintCheckpoint(const CheckpointInfo& checkpoint, Context& context) {
  if (context.json()) {
    context.io.out << ToJson(checkpoint) << '\n';
    return;
  }
  const LoadProgress& progress = checkpoint.progress;
  const bool moved = progress.bytes_total > 0;
  PrintFields(
      {{"name", checkpoint.name},
       {"state", StateOf(checkpoint)},
       {"stage", checkpoint.state == CheckpointState::kLoading ? ProgressLine(progress) : ""},
       {"failure", checkpoint.failure.has_value() ? checkpoint.failure->message : ""},
       {"source", checkpoint.source},
       {"layout", checkpoint.layout},
       {"memory of", checkpoint.served_from},
       {"meant for", std::string(NameOf(checkpoint.intended_mode))},
       {"handed out as", std::string(checkpoint.handle_kind.has_value()
                                         ? NameOf(*checkpoint.handle_kind)
                                         : std::string_view())},
       {"rank", fmt::format("{} of {}", checkpoint.rank, checkpoint.world_size)},
       {"resident on", checkpoint.resident_ranks == 0 ? "" : RanksOf(checkpoint) + " ranks"},
       {"shard", fmt::format("{}, {}", Counted(checkpoint.tensor_count, "tensor"),
                             HumanBytes(checkpoint.slab_bytes))},
       {"all ranks", moved ? fmt::format("{}, {} of files read{}", HumanBytes(progress.bytes_done),
                                         HumanBytes(progress.storage_bytes), IoModesOf(progress))
                           : ""},
       {"host tier", progress.restored_bytes > 0
                         ? HumanBytes(progress.restored_bytes) + " of this rank restored"
                         : ""},
       {"transferred at", progress.bytes_per_second > 0 ? HumanRate(progress.bytes_per_second) : ""},
       {"stages", StagesOf(progress)},
       {"digests", checkpoint.digests ? "yes" : "no"},
       {"leases", std::to_string(checkpoint.lease_count)},
       {"pinned", checkpoint.pinned ? "yes" : "no"},
       {"age", Age(checkpoint.create_time, context)},
       {"plan digest", checkpoint.plan_digest},
       {"identity", checkpoint.identity}},
      context.io.out);
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
