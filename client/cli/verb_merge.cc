#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "client/cli/exit_codes.h"
#include "client/cli/export_run.h"
#include "client/cli/offline.h"
#include "client/cli/verbs.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/export/target.h"
#include "common/source/path_text.h"

namespace ckptd::cli {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kFolderMode = 0777;  // the kernel applies the umask

struct Options {
  std::string folder;
  std::string target;
  bool unsafe = false;
  bool remove = false;
};

absl::Status NotFound(const std::string& folder, const std::string& advice) {
  // The words of accelerate's merge_fsdp_weights.
  return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                   fmt::format("Tried to load from {} but couldn't find a valid metadata file.{}",
                               folder, advice),
                   {{"file", folder}});
}

// Accelerate saves model and optimizer into folders of their own, and merges one of them.
absl::Status CheckFolder(const std::string& folder) {
  std::error_code ignored;
  const fs::path path(folder);
  if (!fs::exists(path, ignored)) {
    const SourceName named = SplitPart(folder);
    if (!named.part.empty() && fs::exists(named.path, ignored)) return absl::OkStatus();
    return NotFound(folder, " The path does not exist.");
  }
  const fs::path model = path / "pytorch_model_fsdp_0";
  if (fs::exists(path / ".metadata", ignored) || !fs::is_directory(model, ignored)) {
    return absl::OkStatus();
  }
  return NotFound(folder, fmt::format(" However, a potential model checkpoint directory exists. "
                                      "Please try passing in {} instead.",
                                      model.string()));
}

// What is removed afterwards must be neither the result nor a part that was not merged.
absl::Status CheckRemoval(const Options& options) {
  std::error_code error;
  if (!fs::exists(options.folder, error)) {
    return UsageError(fmt::format("{} is a part, and --remove-checkpoint-dir would remove all of "
                                  "them; leave it out",
                                  options.folder));
  }
  // Absolute first: what begins with a name that is not there would stay relative.
  const fs::path folder = fs::weakly_canonical(fs::absolute(options.folder, error), error);
  if (error) return ErrnoStatus(error.value(), "resolving " + options.folder);
  const fs::path target = fs::weakly_canonical(fs::absolute(options.target, error), error);
  if (error) return ErrnoStatus(error.value(), "resolving " + options.target);
  if (std::mismatch(folder.begin(), folder.end(), target.begin(), target.end()).first !=
      folder.end()) {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kTargetInvalid,
                   fmt::format("merging {}: it would be removed afterwards, and {} with it; name an "
                               "output outside of it, or keep it",
                               options.folder, options.target),
                   {{"file", options.target}});
}

// An optimizer's state is dicts in dicts, which safetensors cannot hold; nor would flattened names
// be what an optimizer loads.
absl::Status CheckModel(const CheckpointIndex& index) {
  const bool optimizer =
      std::any_of(index.tensors.begin(), index.tensors.end(), [](const TensorEntry& tensor) {
        return tensor.kind == EntryKind::kOptimizer;
      });
  if (!optimizer) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnimplemented, reason::kTargetInvalid,
                   fmt::format("merging {}: it has an optimizer's state, whose levels a merged file "
                               "would lose; merge the model's folder, or write its tensors by their "
                               "full names with `ckptctl convert`",
                               index.source),
                   {{"file", index.source}});
}

absl::Status MakeFolder(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  CKPTD_RETURN_IF_ERROR(CheckFolderAbove(path));
  if (::mkdir(path.c_str(), kFolderMode) == 0 || errno == EEXIST) return absl::OkStatus();
  return WithFact(ErrnoStatus(errno, "creating " + path), "file", path);
}

absl::StatusOr<int> Run(const Options& options, Context& context) {
  CKPTD_RETURN_IF_ERROR(CheckFolder(options.folder));
  if (options.remove) CKPTD_RETURN_IF_ERROR(CheckRemoval(options));
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint source, OpenNamed(options.folder));
  CKPTD_RETURN_IF_ERROR(CheckModel(source.index));
  CKPTD_ASSIGN_OR_RETURN(const Content content, Choose(source.index, {}));
  CKPTD_RETURN_IF_ERROR(MakeFolder(options.target));
  ExportOptions out;
  out.to = options.unsafe ? ExportFormat::kTorch : ExportFormat::kSafetensors;
  out.is_file = true;
  out.replace = true;
  const std::string name = options.unsafe ? "pytorch_model.bin" : "model.safetensors";
  const fs::path target = fs::path(options.target) / name;
  CKPTD_ASSIGN_OR_RETURN(const int code,
                         RunExport(source, content, target.string(), std::move(out), context));
  if (code != kExitFine || !options.remove) return code;
  std::error_code error;
  fs::remove_all(options.folder, error);
  if (error) return ErrnoStatus(error.value(), "removing " + options.folder);
  return code;
}

}  // namespace

void AddMerge(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "merge", "Put the ranks' parts of a model together into one file (no daemon needed)",
      "Does what accelerate's merge_fsdp_weights does, for FSDP1 and FSDP2, in bounded memory, and\n"
      "the same for files of single ranks. A model.safetensors that is there is replaced, once the\n"
      "new one is whole.\n\n"
      "Examples:\n"
      "  ckptctl merge checkpoint-500/pytorch_model_fsdp_0 model/\n"
      "  ckptctl merge checkpoint-500/pytorch_model_fsdp_0 model/ --unsafe-serialization\n");
  auto options = std::make_shared<Options>();
  verb->add_option("FOLDER", options->folder, "What the ranks saved")->required();
  verb->add_option("OUTPUT", options->target,
                   "The folder of the new model.safetensors; is made where there is none")
      ->required();
  verb->add_flag("--unsafe-serialization", options->unsafe,
                 "Write a pytorch_model.bin instead, as torch.save does");
  verb->add_flag("--remove-checkpoint-dir", options->remove, "Remove FOLDER afterwards");
  verb->callback([options, &context] {
    context.action = [options, &context] { return Run(*options, context); };
  });
}

}  // namespace ckptd::cli
