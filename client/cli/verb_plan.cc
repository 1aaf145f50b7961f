#include <fmt/format.h>

#include <memory>

#include "client/cli/exit_codes.h"
#include "client/cli/json_views.h"
#include "client/cli/offline.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

struct Options {
  std::string path;
  std::string layout;
  std::string dtype;
  std::vector<std::string> keep_f32;
  bool remote = false;
};

void PrintPlan(const OfflinePlan& plan, std::ostream& out) {
  const PlanSummary& summary = plan.summary;
  PrintFields({{"read from storage", HumanBytes(summary.storage_bytes)},
               {"largest rank", HumanBytes(summary.peak_rank_bytes)},
               {"all ranks", HumanBytes(summary.total_slab_bytes)},
               {"plan digest", summary.plan_digest}},
              out);
  Table ranks({{"RANK", Table::Align::kRight},
               {"MEMORY", Table::Align::kRight},
               {"TENSORS", Table::Align::kRight},
               {"TENSOR BYTES", Table::Align::kRight},
               {"RECEIVED", Table::Align::kRight}});
  for (const RankBytes& rank : summary.ranks) {
    ranks.AddRow({std::to_string(rank.rank), HumanBytes(rank.slab_bytes),
                  std::to_string(rank.tensor_count), HumanBytes(rank.tensor_bytes),
                  HumanBytes(rank.received_bytes)});
  }
  out << '\n';
  ranks.Print(out);
  Table files({{"FILE"}, {"READ", Table::Align::kRight}});
  for (const FileSize& file : summary.files) files.AddRow({file.path, HumanBytes(file.bytes)});
  out << '\n';
  files.Print(out);
}

absl::StatusOr<OfflinePlan> Plan(const Options& options, const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(const std::string layout, ReadLayout(options.layout));
  CKPTD_ASSIGN_OR_RETURN(const DtypePolicy policy, ToDtypePolicy(options.dtype, options.keep_f32));
  if (!options.remote) return PlanOffline(options.path, layout, policy);
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  PlanRequest request;
  request.source = AbsolutePath(options.path);
  request.layout = layout;
  request.dtype_policy = policy;
  OfflinePlan out;
  CKPTD_ASSIGN_OR_RETURN(out.summary, client.Plan(request));
  return out;
}

absl::StatusOr<int> Run(const Options& options, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(const OfflinePlan plan, Plan(options, context));
  if (context.json()) {
    context.io.out << ToJson(plan.summary, plan.warnings) << '\n';
    return kExitFine;
  }
  PrintPlan(plan, context.io.out);
  for (const std::string& warning : plan.warnings) context.Note("warning: " + warning);
  return kExitFine;
}

}  // namespace

void AddPlan(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "plan", "Show what a load would read and what each rank would get (no daemon needed)",
      "Examples:\n"
      "  ckptctl plan /models/llama --layout fsdp:8\n"
      "  ckptctl plan /models/llama --layout hsdp:2x4 --dtype BF16 --keep-fp32 '*.norm.*'\n"
      "  ckptctl plan /models/llama --layout @layout.json --output json\n");
  auto options = std::make_shared<Options>();
  verb->add_option("PATH", options->path, "A .safetensors file, an index.json, or a folder")
      ->required();
  verb->add_option("--layout", options->layout,
                   "fsdp:N, hsdp:RxS, replicate:N, a layout file (FILE.json or @FILE), or its JSON")
      ->type_name("LAYOUT")
      ->required();
  verb->add_option("--dtype", options->dtype, "Cast floating tensors to F16, BF16, F32 or F64")
      ->type_name("DTYPE");
  verb->add_option("--keep-fp32", options->keep_f32,
                   "Keep floating tensors of these names in F32; may be given again")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_flag("--remote", options->remote, "Let the daemon plan, with the files as it sees them");
  verb->callback([options, &context] {
    context.action = [options, &context] { return Run(*options, context); };
  });
}

}  // namespace ckptd::cli
