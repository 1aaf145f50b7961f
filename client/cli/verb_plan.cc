#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/device_map.h"
#include "client/cli/exit_codes.h"
#include "client/cli/hardware.h"
#include "client/cli/json.h"
#include "client/cli/manifest_file.h"
#include "client/cli/offline.h"
#include "client/cli/output.pb.h"
#include "client/cli/plan_html.h"
#include "client/cli/remarks.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "common/wire/layout.h"

namespace ckptd::cli {
namespace {

struct Options {
  std::string path;
  std::string view;
  std::string layout;
  std::string dtype;
  std::vector<std::string> keep_f32;
  bool remote = false;
  std::string hardware;
  std::string html;
  std::string reader = "rank0";
  std::string comm = "auto";
  bool cached = false;
  DeviceMapArguments device_map;
};

// The choice that daemons make: GPUs of one host map each other's memory.
ModelWay ChooseWay(const std::string& comm, ModelReaders readers, const Hardware& hardware,
                   size_t ranks) {
  if (comm != "auto") return comm == "nccl" ? ModelWay::kNccl : ModelWay::kDirect;
  const bool far = ranks > hardware.gpus_per_host && readers != ModelReaders::kPerNode;
  return far && hardware.network > 0 ? ModelWay::kNccl : ModelWay::kDirect;
}

absl::StatusOr<LoadPrediction> Predict(const Options& options, const v1::PlanLoadResponse& plan) {
  CKPTD_ASSIGN_OR_RETURN(const Hardware hardware, FindHardware(options.hardware));
  LoadShape shape;
  shape.storage_bytes = plan.storage_bytes();
  shape.distinct_bytes = plan.distinct_bytes();
  for (const v1::RankPlan& rank : plan.ranks()) shape.rank_bytes.push_back(rank.tensor_bytes());
  const ModelReaders readers = options.reader == "all"        ? ModelReaders::kAll
                               : options.reader == "per_node" ? ModelReaders::kPerNode
                                                              : ModelReaders::kRank0;
  return PredictLoad(hardware, shape,
                     options.cached ? ModelSource::kPageCache : ModelSource::kStorage, readers,
                     ChooseWay(options.comm, readers, hardware, shape.rank_bytes.size()));
}

void AddPrediction(const LoadPrediction& prediction, PlanOutput& out) {
  PlanOutput::Prediction& added = *out.mutable_prediction();
  added.set_seconds(prediction.seconds);
  added.set_comm(prediction.way == ModelWay::kNccl ? "nccl" : "host");
  for (const ModelStage& one : prediction.stages) {
    PlanOutput::Stage& stage = *added.add_stages();
    stage.set_stage(one.stage);
    stage.set_where(one.where);
    stage.set_bytes(one.bytes);
    stage.set_bytes_per_second(one.rate);
    stage.set_seconds(one.seconds);
  }
}

void PrintPrediction(const Options& options, const PlanOutput::Prediction& prediction,
                     std::ostream& out) {
  const std::string bound = prediction.stages().empty()
                                ? "nothing: there are no bytes"
                                : fmt::format("{}, {}", prediction.stages(0).stage(),
                                              prediction.stages(0).where());
  out << '\n';
  PrintFields({{"predicted on", options.hardware + " (a model, not a measurement)"},
               {"between ranks", prediction.comm() == "nccl"
                                     ? "NCCL"
                                     : "mapped memory, streams to other hosts"},
               {"load", HumanDuration(Seconds(prediction.seconds()))},
               {"bound by", bound}},
              out);
  Table stages({{"STAGE"},
                {"WHERE"},
                {"BYTES", Table::Align::kRight},
                {"RATE", Table::Align::kRight},
                {"TAKES", Table::Align::kRight}});
  for (const PlanOutput::Stage& stage : prediction.stages()) {
    stages.AddRow({stage.stage(), stage.where(), HumanBytes(stage.bytes()),
                   HumanRate(stage.bytes_per_second()), HumanDuration(Seconds(stage.seconds()))});
  }
  out << '\n';
  stages.Print(out);
}

// from_one: rank 0 reads for all. Only then is the number of received bytes known.
void PrintPlan(const v1::PlanLoadResponse& plan, bool from_one, std::ostream& out) {
  PrintFields({{"read from storage", HumanBytes(plan.storage_bytes())},
               {"largest rank", HumanBytes(plan.peak_rank_bytes())},
               {"all ranks", HumanBytes(plan.total_slab_bytes())},
               {"distinct shards", HumanBytes(plan.distinct_bytes())},
               {"plan digest", plan.plan_digest()}},
              out);
  Table ranks({{"RANK", Table::Align::kRight},
               {"MEMORY", Table::Align::kRight},
               {"TENSORS", Table::Align::kRight},
               {"TENSOR BYTES", Table::Align::kRight},
               {from_one ? "RECEIVED" : "", Table::Align::kRight}});
  for (const v1::RankPlan& rank : plan.ranks()) {
    ranks.AddRow({std::to_string(rank.rank()), HumanBytes(rank.slab_bytes()),
                  std::to_string(rank.tensor_count()), HumanBytes(rank.tensor_bytes()),
                  from_one ? HumanBytes(rank.received_bytes()) : ""});
  }
  out << '\n';
  ranks.Print(out);
  Table files({{"FILE"}, {"READ", Table::Align::kRight}});
  for (const v1::FilePlan& file : plan.files()) {
    files.AddRow({file.path(), HumanBytes(file.read_bytes())});
  }
  out << '\n';
  files.Print(out);
}

absl::StatusOr<PlanOutput> Plan(const Options& options, const Context& context,
                                std::vector<std::string>& remarks) {
  CKPTD_ASSIGN_OR_RETURN(const std::string layout, ReadLayout(options.layout));
  CKPTD_ASSIGN_OR_RETURN(const DtypePolicy policy, ToDtypePolicy(options.dtype, options.keep_f32));
  if (!options.remote) {
    CKPTD_ASSIGN_OR_RETURN(OfflinePlan plan, PlanOffline(options.path, options.view, layout, policy));
    if (!options.html.empty()) {
      CKPTD_ASSIGN_OR_RETURN(const std::string html, PlanHtml(plan.plan, layout));
      CKPTD_RETURN_IF_ERROR(WriteWhole(options.html, html));
    }
    remarks = std::move(plan.remarks);
    return ToOutput(plan.plan);
  }
  v1::LoadSpec spec;
  CKPTD_ASSIGN_OR_RETURN(*spec.mutable_source(), AbsolutePath(options.path));
  CKPTD_ASSIGN_OR_RETURN(*spec.mutable_view(), ViewText(options.view, spec.source()));
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  spec.mutable_layout()->set_rules(layout);
  *spec.mutable_dtype_policy() = ToProto(policy);
  PlanOutput out;
  CKPTD_ASSIGN_OR_RETURN(*out.mutable_plan(), client.Plan(spec));
  remarks = RemarksOf(client, spec.source());
  return out;
}

absl::StatusOr<int> Run(const Options& options, Context& context) {
  if (!options.device_map.way.empty()) {
    if (!options.layout.empty() || !options.hardware.empty() || !options.view.empty()) {
      return UsageError("--device-map is for one process: leave out --layout, --view and --hardware");
    }
    CKPTD_ASSIGN_OR_RETURN(const DtypePolicy dtypes, ToDtypePolicy(options.dtype, options.keep_f32));
    return RunDeviceMap(options.path, dtypes, options.remote, options.device_map, context);
  }
  if (options.remote && !options.html.empty()) {
    return UsageError("--html shows a plan that is made here; leave out --remote");
  }
  // Mistakes in options are reported before a large checkpoint is planned.
  if (!options.hardware.empty()) CKPTD_RETURN_IF_ERROR(FindHardware(options.hardware).status());
  std::vector<std::string> remarks;
  CKPTD_ASSIGN_OR_RETURN(PlanOutput plan, Plan(options, context, remarks));
  if (!options.hardware.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const LoadPrediction prediction, Predict(options, plan.plan()));
    AddPrediction(prediction, plan);
  }
  if (context.json()) {
    CKPTD_RETURN_IF_ERROR(PrintJson(plan, context.io.out));
    return kExitFine;
  }
  PrintPlan(plan.plan(), options.reader == "rank0", context.io.out);
  if (plan.has_prediction()) PrintPrediction(options, plan.prediction(), context.io.out);
  if (!options.html.empty()) context.Note("the picture is in " + options.html);
  for (const std::string& warning : plan.warnings()) context.Note("warning: " + warning);
  NoteRemarks(remarks, context);
  return kExitFine;
}

constexpr char kHelp[] =
    "Examples:\n"
    "  ckptctl plan /models/llama --layout fsdp:8\n"
    "  ckptctl plan /models/llama --layout hsdp:2x4 --dtype BF16 --keep-fp32 '*.norm.*'\n"
    "  ckptctl plan /models/llama --layout @layout.json --output json\n"
    "  ckptctl plan /models/llama --layout fsdp:8 --html plan.html\n"
    "  ckptctl plan /models/llama --layout fsdp:64 --hardware h200x8 --reader all\n"
    "  ckptctl plan /models/llama --device-map auto --max-memory 0=20GiB,1=20GiB,cpu=64GiB \\\n"
    "    --no-split 'model.layers.*'\n\n"
    "A prediction takes every stage to overlap all others, so the slowest one is the load's\n"
    "time. The rates of known hardware are assumptions; a file (FILE.json) with yours, in GB/s:\n"
    "  {\"gpus_per_host\": 8, \"storage\": 12, \"shared_storage\": 0, \"memory\": 80, \"link\": 55,\n"
    "   \"links\": 240, \"fabric\": 350, \"network\": 360, \"streams\": 5, \"fixed_seconds\": 0.05}\n\n"
    "A device map is what accelerate's infer_auto_device_map gives for a model of the same\n"
    "modules. A checkpoint lacks modules without tensors and buffers that are not saved.\n";

}  // namespace

void AddPlan(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "plan", "Show what a load would read and what each rank would get (no daemon needed)",
      kHelp);
  auto options = std::make_shared<Options>();
  verb->add_option("PATH", options->path, "A checkpoint as inspect takes it")
      ->required();
  verb->add_option("--layout", options->layout,
                   "fsdp:N, hsdp:RxS, replicate:N, a layout file (FILE.json or @FILE), or its JSON")
      ->type_name("LAYOUT");
  verb->add_option("--dtype", options->dtype, "Cast floating tensors to F16, BF16, F32 or F64")
      ->type_name("DTYPE");
  verb->add_option("--keep-fp32", options->keep_f32,
                   "Keep floating tensors of these names in F32; may be given again")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_option("--html", options->html,
                   "Write a page that shows which rank gets which part of which file")
      ->type_name("FILE");
  AddViewOption(*verb, options->view);
  verb->add_flag("--remote", options->remote, "Let the daemon plan, with the files as it sees them");
  verb->add_option("--hardware", options->hardware,
                   fmt::format("Predict how long the load takes on {}, or on what a file describes",
                               fmt::join(HardwareNames(), ", ")))
      ->type_name("NAME|FILE");
  verb->add_option("--reader", options->reader, "Who reads storage, as the daemons' --reader says")
      ->check(CLI::IsMember({"rank0", "per_node", "all"}))
      ->capture_default_str();
  verb->add_option("--comm", options->comm,
                   "How slices travel between GPUs, as the daemons' --comm says")
      ->check(CLI::IsMember({"auto", "host", "nccl"}))
      ->capture_default_str();
  verb->add_flag("--cached", options->cached, "The files are in the page cache");
  AddDeviceMapOptions(*verb, options->device_map);
  verb->callback([options, &context] {
    context.action = [options, &context] { return Run(*options, context); };
  });
}

}  // namespace ckptd::cli
