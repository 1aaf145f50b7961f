// Verbs that write a checkpoint as another one: convert and split.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "client/cli/export_run.h"
#include "client/cli/offline.h"
#include "client/cli/verbs.h"
#include "common/base/status.h"
#include "common/source/path_text.h"

namespace ckptd::cli {
namespace {

struct Options {
  std::string source;
  std::string view = {};
  std::string target;
  std::string to;
  std::string dtype;
  std::string max_shard_size;
  ChoiceOptions choice;
};

constexpr char kAtomic[] =
    "TARGET is there once all of it is. A run that was stopped leaves nothing that a loader takes;\n"
    "call it again. Memory stays below 1 GiB, whatever the size. Of a folder, files beside the\n"
    "weights (config.json, the tokenizer's and the like) are copied, too.\n\n";

bool EndsAsTorchFile(const std::string& target) {
  const std::string suffix = std::filesystem::path(target).extension().string();
  return suffix == ".bin" || suffix == ".pt" || suffix == ".pth" || suffix == ".ckpt";
}

// A target with the name of a weights file is one; others are folders.
bool IsFile(ExportFormat to, const std::string& target) {
  if (to == ExportFormat::kTorch) return EndsAsTorchFile(target);
  return to == ExportFormat::kSafetensors && target.ends_with(".safetensors");
}

// Folders have dots in their names where versions and dtypes stand ("llama-3.1", "model.fp16").
bool EndsAsOtherFile(const std::string& target) {
  const std::string suffix = std::filesystem::path(target).extension().string();
  const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0; };
  return suffix == ".h5" ||
         (suffix.size() > 1 && std::all_of(suffix.begin() + 1, suffix.end(), is_letter));
}

// A name must not promise another format than the one that is written.
absl::Status CheckName(const Options& options) {
  const bool torch = EndsAsTorchFile(options.target);
  if (torch || options.target.ends_with(".safetensors")) {
    const std::string named = torch ? "torch" : "safetensors";
    if (options.to.empty() || options.to == named) return absl::OkStatus();
    return UsageError(fmt::format("{} is the name of a file of {}, and --to says {}; leave out "
                                  "--to, or end the name with / for a folder",
                                  options.target, named, options.to));
  }
  std::error_code ignored;
  const bool folder = options.to == "dcp" || std::filesystem::is_directory(options.target, ignored);
  if (folder || !EndsAsOtherFile(options.target)) return absl::OkStatus();
  return UsageError(fmt::format("{} has the end of a file that is not written; end it with "
                                ".safetensors, .bin or .pt, or with / for a folder",
                                options.target));
}

absl::Status NoFolder(const Options& options) {
  return UsageError(fmt::format("{} would be one file, and split writes several; name a folder, or "
                                "use convert",
                                options.target));
}

absl::StatusOr<uint64_t> ShardBytes(const std::string& text) {
  if (text.empty()) return kDefaultShardBytes;
  const std::optional<uint64_t> bytes = ParseShardSize(text);
  if (bytes.has_value()) return *bytes;
  return UsageError(fmt::format("--max-shard-size {}: a size is a number and TB, GB, MB or KB, as in "
                                "5GB, or bytes",
                                text));
}

absl::StatusOr<int> Run(const Options& options, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(Choice choice, ToChoice(options.choice));
  if (!options.dtype.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const DtypePolicy policy, ToDtypePolicy(options.dtype, {}));
    choice.dtype = policy.cast_to;
  }
  ExportOptions out;
  CKPTD_ASSIGN_OR_RETURN(out.max_shard_bytes, ShardBytes(options.max_shard_size));
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint source, OpenNamed(options.source, options.view));
  const std::string own = source.index.format == "torch" ? "torch" : "safetensors";
  out.to = *ParseExportFormat(options.to.empty() ? own : options.to);
  choice.objects = out.to == ExportFormat::kDcp;
  out.is_file = IsFile(out.to, options.target);
  if (!options.max_shard_size.empty() && (out.is_file || out.to == ExportFormat::kDcp)) {
    return UsageError(fmt::format("{} is one file: leave out --max-shard-size, or name a folder{}",
                                  options.target,
                                  out.is_file ? "" : " and another format than dcp"));
  }
  if (!options.max_shard_size.empty() && IsAdapter(source.index)) {
    return UsageError(fmt::format("{} is an adapter, which PEFT opens as one file alone: leave out "
                                  "--max-shard-size",
                                  options.source));
  }
  CKPTD_ASSIGN_OR_RETURN(const Content content, Choose(source.index, choice));
  if (!out.is_file) out.sidecars = FindSidecars(SplitPart(source.index.source).path);
  return RunExport(source, content, options.target, std::move(out), context);
}

void AddPaths(CLI::App& verb, Options& options) {
  verb.add_option("SOURCE", options.source, "A checkpoint as inspect takes it")->required();
  verb.add_option("TARGET", options.target,
                  "A new folder, or a new file where its name ends as such files' do (.safetensors, "
                  ".bin, .pt); a / at its end makes it a folder")
      ->required();
}

void AddShardSize(CLI::App& verb, Options& options) {
  verb.add_option("--max-shard-size", options.max_shard_size,
                  "The most bytes of one file, as in 5GB (the default) or 500MB; a larger tensor is a "
                  "file of its own")
      ->type_name("SIZE");
}

}  // namespace

void AddConvert(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "convert", "Write a checkpoint in another format, dtype or spread (no daemon needed)",
      std::string(kAtomic) +
          "Examples:\n"
          "  ckptctl convert checkpoint-500/pytorch_model_fsdp_0 model/ --to safetensors\n"
          "  ckptctl convert pytorch_model.bin model.safetensors --dtype BF16\n"
          "  ckptctl convert llama/ dcp/ --to dcp --rename '^=model.'\n"
          "  ckptctl convert last.ckpt model.safetensors --rename '^model\\.='\n"
          "  ckptctl convert /models/mixtral fused/ --view stack-experts.json\n");
  auto options = std::make_shared<Options>();
  AddPaths(*verb, *options);
  verb->add_option("--to", options->to, "The format that is written; default: what the target's name says, else safetensors")
      ->check(CLI::IsMember({"safetensors", "torch", "dcp"}));
  verb->add_option("--dtype", options->dtype, "Cast floating tensors to F16, BF16, F32 or F64")
      ->type_name("DTYPE");
  AddShardSize(*verb, *options);
  AddViewOption(*verb, options->view);
  AddChoiceOptions(*verb, "names", options->choice);
  verb->callback([options, &context] {
    context.action = [options, &context]() -> absl::StatusOr<int> {
      CKPTD_RETURN_IF_ERROR(CheckName(*options));
      if (options->to.empty()) {
        options->to = EndsAsTorchFile(options->target) ? "torch" : "safetensors";
      }
      return Run(*options, context);
    };
  });
}

void AddSplit(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "split", "Spread a checkpoint over files of a limited size (no daemon needed)",
      std::string(kAtomic) +
          "Files, their names and their index are those of huggingface_hub's\n"
          "split_torch_state_dict_into_shards. Torch files stay torch's; others become safetensors.\n\n"
          "Example:\n"
          "  ckptctl split model.safetensors model/ --max-shard-size 2GB\n");
  auto options = std::make_shared<Options>();
  AddPaths(*verb, *options);
  AddShardSize(*verb, *options);
  verb->callback([options, &context] {
    context.action = [options, &context]() -> absl::StatusOr<int> {
      if (EndsAsTorchFile(options->target) || options->target.ends_with(".safetensors")) {
        return NoFolder(*options);
      }
      return Run(*options, context);
    };
  });
}

}  // namespace ckptd::cli
