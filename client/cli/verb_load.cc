#include <fmt/format.h>

#include <memory>

#include "client/cli/exit_codes.h"
#include "client/cli/json_views.h"
#include "client/cli/progress.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/checkpoint/open.h"

namespace ckptd::cli {
namespace {

constexpr Timeout kLoadTimeout{600'000};
constexpr Timeout kWatchTimeout{3'600'000};

struct Options {
  std::string path;
  std::string layout;
  std::string mode = "shared";
  std::string handle = "auto";
  std::string digest = "on";
  std::string dtype;
  std::vector<std::string> keep_f32;
  std::string wait_memory;
  bool no_wait = false;
};

AttachMode ModeOf(const std::string& name) {
  if (name == "private") return AttachMode::kPrivate;
  return name == "exclusive" ? AttachMode::kExclusive : AttachMode::kShared;
}

std::optional<HandleKind> KindOf(const std::string& name) {
  if (name == "memfd") return HandleKind::kMemfd;
  if (name == "vmm_fd") return HandleKind::kVmmFd;
  if (name == "cuda_ipc") return HandleKind::kCudaIpc;
  return std::nullopt;
}

absl::StatusOr<LoadRequest> ToRequest(const Options& options, const Context& context) {
  LoadRequest request;
  CKPTD_ASSIGN_OR_RETURN(request.source, AbsolutePath(options.path));
  CKPTD_ASSIGN_OR_RETURN(request.layout, ReadLayout(options.layout));
  CKPTD_ASSIGN_OR_RETURN(request.dtype_policy, ToDtypePolicy(options.dtype, options.keep_f32));
  request.intended_mode = ModeOf(options.mode);
  request.handle_kind = KindOf(options.handle);
  request.digests = options.digest == "on";
  request.timeout = context.TimeoutOr(kLoadTimeout);
  if (!options.wait_memory.empty()) {
    CKPTD_ASSIGN_OR_RETURN(request.wait_memory, ParseTimeout(options.wait_memory));
  }
  request.hold = false;  // trainers acquire it later; `ckptctl pin` keeps it for them
  return request;
}

// "3.4 s at 4.5 GB/s", over the whole load.
std::string Speed(const CheckpointInfo& checkpoint) {
  if (!checkpoint.create_time.has_value() || !checkpoint.active_time.has_value()) return {};
  const Seconds took = *checkpoint.active_time - *checkpoint.create_time;
  if (took.count() <= 0) return {};
  return fmt::format(", {} in {} ({})", HumanBytes(checkpoint.progress.bytes_done),
                     HumanDuration(took),
                     HumanRate(static_cast<double>(checkpoint.progress.bytes_done) / took.count()));
}

void PrintLoaded(const LoadResult& result, Context& context) {
  const CheckpointInfo& checkpoint = result.checkpoint;
  const std::string was = !checkpoint.served_from.empty()
                              ? fmt::format(" (was resident as {})", checkpoint.served_from)
                          : result.resident ? " (was resident)"
                                            : "";
  if (context.json()) {
    context.io.out << ToJson(result) << '\n';
  } else if (context.globals.quiet) {
    context.io.out << Escape(checkpoint.name) << '\n';
  } else {
    context.io.out << Escape(fmt::format(
                          "{} is {}{}: rank {} of {} holds {}, {}{}", checkpoint.name,
                          NameOf(checkpoint.state), was,
                          checkpoint.rank, checkpoint.world_size,
                          Counted(checkpoint.tensor_count, "tensor"),
                          HumanBytes(checkpoint.slab_bytes),
                          was.empty() ? Speed(checkpoint) : ""))
                   << '\n';
  }
}

// Tells why no resident checkpoint answered the request.
void NoteDifference(const LoadResult& result, Context& context) {
  if (result.differs.empty() || !result.checkpoint.served_from.empty()) return;
  context.Note(fmt::format("note: another load of this source is resident; it differs in: {}",
                           fmt::join(result.differs, ", ")));
}

absl::StatusOr<int> RunLoad(const Options& options, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(const LoadRequest request, ToRequest(options, context));
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  CKPTD_ASSIGN_OR_RETURN(LoadResult result, client.Load(request));
  if (options.no_wait) {
    NoteDifference(result, context);
    PrintLoaded(result, context);
    return kExitFine;
  }
  if (result.checkpoint.state == CheckpointState::kLoading) {
    absl::StatusOr<CheckpointInfo> last =
        Follow(client, result.checkpoint, request.timeout, context);
    if (absl::IsCancelled(last.status())) return ReportInterrupted(result.checkpoint.name, context);
    CKPTD_ASSIGN_OR_RETURN(result.checkpoint, std::move(last));
  }
  CKPTD_RETURN_IF_ERROR(CheckActive(result.checkpoint));
  NoteDifference(result, context);
  PrintLoaded(result, context);
  return kExitFine;
}

absl::StatusOr<int> RunWatch(const std::string& id, Context& context) {
  const std::string name = CheckpointName(id);
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  CheckpointInfo checkpoint;
  checkpoint.name = name;
  absl::StatusOr<CheckpointInfo> last =
      Follow(client, checkpoint, context.TimeoutOr(kWatchTimeout), context);
  if (absl::IsCancelled(last.status())) return ReportInterrupted(name, context);
  CKPTD_ASSIGN_OR_RETURN(checkpoint, std::move(last));
  CKPTD_RETURN_IF_ERROR(CheckActive(checkpoint));
  PrintCheckpoint(checkpoint, context);
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

absl::StatusOr<CheckpointInfo> Follow(Client& client, const CheckpointInfo& checkpoint,
                                      Timeout timeout, Context& context) {
  ProgressView view(context.io, context.globals.quiet);
  WatchOptions options;
  options.timeout = timeout;
  options.cancel = context.io.interrupt;
  options.on_update = [&view](const CheckpointInfo& update) {
    if (update.state == CheckpointState::kLoading) view.Update(update.progress);
  };
  return client.Watch(checkpoint.name, options);
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
      "  ckptctl load /models/llama --layout @layout.json --no-wait --output json\n");
  auto options = std::make_shared<Options>();
  verb->add_option("PATH", options->path, "A .safetensors file, an index.json, or a folder")
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
