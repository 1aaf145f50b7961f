#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/progress.h"
#include "client/cli/remarks.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "common/wire/layout.h"

namespace ckptd::cli {
namespace {

using google::protobuf::util::TimeUtil;

constexpr Timeout kLoadTimeout{600'000};
constexpr Timeout kWatchTimeout{3'600'000};

struct Options {
  std::string path;
  std::string layout;
  std::string mode = "shared";
  std::string handle = "auto";
  std::string digest = "on";
  std::string view;
  std::string dtype;
  std::vector<std::string> keep_f32;
  std::string wait_memory;
  bool no_wait = false;
};

v1::AttachMode ModeOf(const std::string& name) {
  if (name == "private") return v1::ATTACH_MODE_PRIVATE;
  return name == "exclusive" ? v1::ATTACH_MODE_EXCLUSIVE : v1::ATTACH_MODE_SHARED;
}

v1::HandleKind KindOf(const std::string& name) {
  if (name == "memfd") return v1::HANDLE_KIND_MEMFD;
  if (name == "vmm_fd") return v1::HANDLE_KIND_VMM_FD;
  return name == "cuda_ipc" ? v1::HANDLE_KIND_CUDA_IPC : v1::HANDLE_KIND_UNSPECIFIED;
}

absl::StatusOr<v1::LoadSpec> ToSpec(const Options& options, Timeout timeout) {
  v1::LoadSpec spec;
  CKPTD_ASSIGN_OR_RETURN(*spec.mutable_source(), AbsolutePath(options.path));
  CKPTD_ASSIGN_OR_RETURN(*spec.mutable_layout()->mutable_rules(), ReadLayout(options.layout));
  CKPTD_ASSIGN_OR_RETURN(*spec.mutable_view(), ViewText(options.view, spec.source()));
  CKPTD_ASSIGN_OR_RETURN(const DtypePolicy policy, ToDtypePolicy(options.dtype, options.keep_f32));
  *spec.mutable_dtype_policy() = ToProto(policy);
  spec.set_intended_mode(ModeOf(options.mode));
  spec.set_handle_kind(KindOf(options.handle));
  spec.set_skip_digests(options.digest == "off");
  *spec.mutable_timeout() = TimeUtil::MillisecondsToDuration(timeout.count());
  if (!options.wait_memory.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const Timeout wait, ParseTimeout(options.wait_memory));
    *spec.mutable_wait_memory() = TimeUtil::MillisecondsToDuration(wait.count());
  }
  return spec;
}

// "3.4 s at 4.5 GB/s", over the whole load.
std::string Speed(const v1::Checkpoint& checkpoint) {
  if (!checkpoint.has_create_time() || !checkpoint.has_active_time()) return {};
  const Seconds took = TimeOf(checkpoint.active_time()) - TimeOf(checkpoint.create_time());
  if (took.count() <= 0) return {};
  const uint64_t bytes = checkpoint.progress().bytes_done();
  return fmt::format(", {} in {} ({})", HumanBytes(bytes), HumanDuration(took),
                     HumanRate(static_cast<double>(bytes) / took.count()));
}

absl::Status PrintLoaded(const v1::LoadCheckpointResponse& result, Context& context) {
  if (context.json()) return PrintJson(result, context.io.out);
  const v1::Checkpoint& one = result.checkpoint();
  if (context.globals.quiet) {
    context.io.out << Escape(one.name()) << '\n';
    return absl::OkStatus();
  }
  const std::string was = !one.served_from().empty()
                              ? fmt::format(" (was resident as {})", one.served_from())
                          : result.resident() ? " (was resident)"
                                              : "";
  context.io.out << Escape(fmt::format("{} is {}{}: rank {} of {} holds {}, {}{}", one.name(),
                                       NameOf(one.state()), was, one.rank(), one.world_size(),
                                       Counted(one.tensor_count(), "tensor"),
                                       HumanBytes(one.slab_bytes()),
                                       was.empty() ? Speed(one) : ""))
                 << '\n';
  return absl::OkStatus();
}

// Tells why no resident checkpoint answered the request.
void NoteDifference(const v1::LoadCheckpointResponse& result, Context& context) {
  if (result.differs().empty() || !result.checkpoint().served_from().empty()) return;
  context.Note(fmt::format("note: another load of this source is resident; it differs in: {}",
                           fmt::join(result.differs(), ", ")));
}

absl::StatusOr<int> RunLoad(const Options& options, Context& context) {
  const Timeout timeout = context.TimeoutOr(kLoadTimeout);
  CKPTD_ASSIGN_OR_RETURN(const v1::LoadSpec spec, ToSpec(options, timeout));
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  // Trainers acquire it later; `ckptctl pin` keeps it for them.
  CKPTD_ASSIGN_OR_RETURN(v1::LoadCheckpointResponse result, client.Load(spec, {.hold = false}));
  v1::Checkpoint& checkpoint = *result.mutable_checkpoint();
  if (!options.no_wait) {
    if (checkpoint.state() == v1::Checkpoint::STATE_LOADING) {
      auto last = Follow(client, checkpoint.name(), timeout, context);
      if (absl::IsCancelled(last.status())) return ReportInterrupted(checkpoint.name(), context);
      CKPTD_ASSIGN_OR_RETURN(checkpoint, std::move(last));
    }
    CKPTD_RETURN_IF_ERROR(CheckActive(checkpoint));
  }
  // It may turn out while the load is planned.
  if (!checkpoint.served_from().empty()) result.set_resident(true);
  NoteDifference(result, context);
  CKPTD_RETURN_IF_ERROR(PrintLoaded(result, context));
  const bool silent = options.no_wait || context.json() || context.globals.quiet;
  if (!silent) NoteRemarks(RemarksOf(client, spec.source()), context);
  return kExitFine;
}

absl::StatusOr<int> RunWatch(const std::string& id, Context& context) {
  const std::string name = CheckpointName(id);
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  const auto last = Follow(client, name, context.TimeoutOr(kWatchTimeout), context);
  if (absl::IsCancelled(last.status())) return ReportInterrupted(name, context);
  CKPTD_RETURN_IF_ERROR(last.status());
  CKPTD_RETURN_IF_ERROR(CheckActive(*last));
  CKPTD_RETURN_IF_ERROR(PrintCheckpoint(*last, context));
  return kExitFine;
}

void AddWaiting(CLI::App& verb, Options& options) {
  verb.add_option("--wait-memory", options.wait_memory,
                  "Wait this long for memory that trainers hold, as in 90s or 5m; else it is an "
                  "error at once")
      ->type_name("DURATION");
  verb.add_flag("--no-wait", options.no_wait, "Start the load and return at once");
}

}  // namespace

absl::StatusOr<v1::Checkpoint> Follow(Client& client, const std::string& name, Timeout timeout,
                                      Context& context) {
  ProgressView view(context.io, context.globals.quiet);
  WatchOptions options;
  options.timeout = timeout;
  options.cancel = context.io.interrupt;
  options.on_update = [&view](const v1::Checkpoint& update) {
    if (update.state() == v1::Checkpoint::STATE_LOADING) view.Update(update.progress());
  };
  return client.Watch(name, options);
}

int ReportInterrupted(const std::string& name, Context& context) {
  context.io.err << Escape(fmt::format("ckptctl: stopped watching {}; the load goes on. Follow it "
                                       "with `ckptctl watch {}`, cancel it with `ckptctl unload "
                                       "--force {}`",
                                       name, name, name))
                 << '\n';
  return kExitInterrupted;
}

void AddLoad(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "load", "Load a checkpoint into the group's memory, and wait until it is ready",
      "--timeout bounds the whole load (default 10m). Ctrl-C stops the waiting, not the load.\n\n"
      "Examples:\n"
      "  ckptctl load /models/llama --layout fsdp:8\n"
      "  ckptctl load /models/llama --layout replicate:4 --dtype BF16 --keep-fp32 '*.norm.*'\n"
      "  name=$(ckptctl load /models/llama --layout fsdp:8 --quiet)\n"
      "  ckptctl load /models/llama --layout @layout.json --no-wait --output json\n"
      "  ckptctl load /models/mixtral --layout fsdp:8 --view stack-experts.json\n");
  auto options = std::make_shared<Options>();
  verb->add_option("PATH", options->path, "A checkpoint as inspect takes it")
      ->required();
  verb->add_option("--layout", options->layout,
                   "fsdp:N, hsdp:RxS, replicate:N, a layout file (FILE.json or @FILE), or its JSON")
      ->type_name("LAYOUT")
      ->required();
  verb->add_option("--mode", options->mode, "How trainers will hold it; exclusive ones take it over")
      ->check(CLI::IsMember({"shared", "private", "exclusive"}))
      ->capture_default_str();
  verb->add_option("--handle", options->handle,
                   "How trainers get it; cuda_ipc: GPU memory that any CUDA program opens, at a "
                   "price (proto/README.md)")
      ->check(CLI::IsMember({"auto", "memfd", "vmm_fd", "cuda_ipc"}))
      ->capture_default_str();
  verb->add_option("--digest", options->digest, "Compute a digest of each tensor, for verify")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  verb->add_option("--dtype", options->dtype, "Cast floating tensors to F16, BF16, F32 or F64")
      ->type_name("DTYPE");
  verb->add_option("--keep-fp32", options->keep_f32,
                   "Keep floating tensors of these names in F32; may be given again")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  AddViewOption(*verb, options->view);
  AddWaiting(*verb, *options);
  verb->callback([options, &context] {
    context.action = [options, &context] { return RunLoad(*options, context); };
  });
}

void AddWatch(CLI::App& app, Context& context) {
  CLI::App* verb =
      AddVerb(app, "watch", "Follow a load until it is done",
              "--timeout bounds the waiting (default 1h); exit code 4 says it is still loading.\n\n"
              "Example:\n"
              "  ckptctl watch checkpoints/3f9a12c4\n");
  auto name = std::make_shared<std::string>();
  verb->add_option("NAME", *name, "The checkpoint, as load and list name it")->required();
  verb->callback([name, &context] {
    context.action = [name, &context] { return RunWatch(*name, context); };
  });
}

}  // namespace ckptd::cli
