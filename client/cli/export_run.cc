#include "client/cli/export_run.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/output.pb.h"
#include "client/cli/progress.h"
#include "client/cli/rename_rules.h"
#include "client/cli/text.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/source/path_text.h"

namespace ckptd::cli {
namespace {

// Seconds: at what is shown, and before a first estimate, which short runs do without.
constexpr double kBetweenLooks = 0.1;
constexpr double kBeforeFirst = 1;

// Follows the bytes that are written.
class Progress {
 public:
  Progress(uint64_t total, Context& context)
      : io_(context.io),
        view_(context.io, context.globals.quiet),
        listening_(context.io.interrupt, [this] { stopped_ = true; }) {
    progress_.set_bytes_total(total);
    progress_.set_slowest_rank(-1);
  }

  bool Add(uint64_t bytes) {
    progress_.set_bytes_done(progress_.bytes_done() + bytes);
    const double took = seconds();
    const bool is_last = next_ > kBeforeFirst && progress_.bytes_done() == progress_.bytes_total();
    if (took < next_ && !is_last) return !stopped_;
    next_ = took + kBetweenLooks;
    progress_.set_bytes_per_second(static_cast<double>(progress_.bytes_done()) / took);
    view_.Update(progress_, is_last ? "WRITTEN" : "WRITING");
    return !stopped_;
  }
  double seconds() const {
    return std::chrono::duration<double>(io_.now() - begin_).count();
  }

 private:
  const Io& io_;
  const TimePoint begin_ = io_.now();
  double next_ = kBeforeFirst;
  v1::Progress progress_;
  ProgressView view_;
  std::atomic<bool> stopped_ = false;
  const CancelToken::Listening listening_;  // last, because its constructor may call the listener
};

// Remarks on things that the written files do not have.
std::vector<std::string> LeftOut(const CheckpointIndex& index, const ExportOptions& options,
                                 const Content& content) {
  std::vector<std::string> remarks;
  const auto add = [&remarks](size_t count, const char* one, const char* many) {
    if (count == 1) remarks.emplace_back(one);
    if (count > 1) remarks.push_back(fmt::format("{} {}", count, many));
  };
  add(index.values.size(), "1 value that is no tensor was left out",
      "values that are no tensors were left out");
  add(index.opaque.size(), "1 object of a class was left out", "objects of classes were left out");
  size_t objects = 0;
  for (const TensorEntry& tensor : index.tensors) objects += tensor.kind == EntryKind::kObject;
  if (options.to != ExportFormat::kDcp) {
    add(objects, "1 entry of bytes was left out", "entries of bytes were left out");
  }
  size_t aliases = 0;
  for (const OutTensor& tensor : content.tensors) aliases += tensor.aliases.size();
  if (options.to == ExportFormat::kSafetensors) {
    add(aliases, "1 name of a tied tensor became metadata, as safetensors' save_model keeps it",
        "names of tied tensors became metadata, as safetensors' save_model keeps them");
  }
  return remarks;
}

absl::Status Print(const ExportOutput& output, Context& context) {
  if (context.json()) return PrintJson(output, context.io.out);
  std::string speed;
  if (output.seconds() > 0) {
    speed = fmt::format(" in {} ({})", HumanDuration(Seconds(output.seconds())),
                        HumanRate(static_cast<double>(output.bytes()) / output.seconds()));
  }
  context.io.out << Escape(fmt::format("{}: {}, {} in {}{}", output.target(),
                                       Counted(output.tensor_count(), "tensor"),
                                       HumanBytes(output.bytes()),
                                       Counted(static_cast<uint64_t>(output.files_size()), "file"),
                                       context.globals.quiet ? "" : speed))
                 << '\n';
  for (const std::string& remark : output.remarks()) context.Note("note: " + remark);
  return absl::OkStatus();
}

}  // namespace

void AddChoiceOptions(CLI::App& verb, const std::string& renamed, ChoiceOptions& options) {
  const auto add = [&verb](const char* name, std::vector<std::string>& into,
                           const std::string& help, const char* type) {
    verb.add_option(name, into, help)->type_name(type)->allow_extra_args(false);
  };
  add("--include", options.include,
      "Only tensors whose names match this pattern (* and ?); may be given again", "GLOB");
  add("--exclude", options.exclude, "No tensors whose names match it; may be given again", "GLOB");
  add("--rename", options.rename,
      fmt::format("Change {} by a regular expression of RE2, wherever it matches (\\1: its first "
                  "group); may be given again; @FILE: one rule a line",
                  renamed),
      "PATTERN=REPLACEMENT");
}

absl::StatusOr<Choice> ToChoice(const ChoiceOptions& options) {
  Choice choice;
  choice.include = options.include;
  choice.exclude = options.exclude;
  CKPTD_ASSIGN_OR_RETURN(choice.rename, ParseRenameRules(options.rename));
  return choice;
}

absl::StatusOr<int> RunExport(const OpenedCheckpoint& source, const Content& content,
                              const std::string& target, ExportOptions options, Context& context) {
  ExportOutput output;
  {
    Progress progress(content.bytes(), context);
    options.on_written = [&progress](uint64_t bytes) { return progress.Add(bytes); };
    const absl::StatusOr<ExportResult> result = Export(content, target, options);
    if (absl::IsCancelled(result.status())) {
      context.Note(fmt::format("stopped; nothing is left of {}", target));
      return kExitInterrupted;
    }
    CKPTD_RETURN_IF_ERROR(result.status());
    for (const std::string& name : result->files) output.add_files(MessageText(name));
    output.set_bytes(result->bytes);
    output.set_seconds(progress.seconds());
  }
  output.set_target(MessageText(target));
  output.set_tensor_count(content.tensors.size());
  for (const std::string& remark : source.remarks) output.add_remarks(MessageText(remark));
  for (std::string& remark : LeftOut(source.index, options, content)) {
    output.add_remarks(std::move(remark));
  }
  CKPTD_RETURN_IF_ERROR(Print(output, context));
  return kExitFine;
}

}  // namespace ckptd::cli
