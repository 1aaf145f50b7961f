#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <string>

#include "client/cli/exit_codes.h"
#include "client/cli/export_run.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/output.pb.h"
#include "client/cli/remarks.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/export/compare.h"

namespace ckptd::cli {
namespace {

struct Options {
  std::string a;
  std::string b;
  ChoiceOptions choice;
};

std::string Describe(const TensorEntry* tensor) {
  return tensor == nullptr ? ""
                           : fmt::format("{} {}", NameOf(tensor->dtype), JoinShape(tensor->shape));
}

DiffOutput ToOutput(const Options& options, const Comparison& comparison) {
  DiffOutput out;
  out.set_a(MessageText(options.a));
  out.set_b(MessageText(options.b));
  out.set_same(comparison.differences.empty());
  out.set_tensor_count(comparison.tensors);
  out.set_bytes(comparison.bytes);
  for (const TensorDifference& one : comparison.differences) {
    DiffOutput::Difference& added = *out.add_differences();
    added.set_tensor(MessageText(one.name));
    added.set_kind(std::string(NameOf(one.kind)));
    added.set_a(Describe(one.a));
    added.set_b(Describe(one.b));
    added.set_elements(one.elements);
    added.set_has_largest(one.has_largest);
    added.set_largest(one.largest);
  }
  return out;
}

std::string WhatDiffers(const DiffOutput::Difference& one) {
  if (one.kind() == "missing") return "only in the first";
  if (one.kind() == "extra") return "only in the second";
  if (one.kind() == "shape") return "another shape";
  std::string out = one.kind() == "dtype" ? "another dtype" : "";
  if (one.elements() == 0) return out;
  if (!out.empty()) out += ", ";
  out += fmt::format("{} differ{}", Counted(one.elements(), "element"),
                     one.elements() == 1 ? "s" : "");
  if (one.has_largest()) out += fmt::format(", by up to {:.6g}", one.largest());
  return out;
}

void Print(const DiffOutput& output, std::ostream& out) {
  if (!output.differences().empty()) {
    Table table({{"NAME"}, {"FIRST"}, {"SECOND"}, {"DIFFERENCE"}});
    for (const DiffOutput::Difference& one : output.differences()) {
      table.AddRow({one.tensor(), one.a(), one.b(), WhatDiffers(one)});
    }
    table.Print(out);
  }
  out << fmt::format("{} compared, {}: {}\n", Counted(output.tensor_count(), "tensor"),
                     HumanBytes(output.bytes()),
                     output.same() ? "no difference"
                                   : Counted(static_cast<uint64_t>(output.differences_size()),
                                             "difference"));
}

absl::StatusOr<int> Run(const Options& options, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(Choice choice, ToChoice(options.choice));
  choice.may_match_nothing = true;
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint first, OpenNamed(options.a));
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint second, OpenNamed(options.b));
  CKPTD_ASSIGN_OR_RETURN(const Content a, Choose(first.index, choice));
  choice.rename = nullptr;
  CKPTD_ASSIGN_OR_RETURN(const Content b, Choose(second.index, choice));
  CKPTD_RETURN_IF_ERROR(CheckPatterns(choice, {&a, &b}));
  std::atomic<bool> stopped = false;
  const CancelToken::Listening listening(context.io.interrupt, [&stopped] { stopped = true; });
  const absl::StatusOr<Comparison> comparison =
      Compare(a, b, [&stopped](uint64_t) { return !stopped; });
  if (absl::IsCancelled(comparison.status())) return kExitInterrupted;
  CKPTD_RETURN_IF_ERROR(comparison.status());
  const DiffOutput output = ToOutput(options, *comparison);
  if (context.json()) {
    CKPTD_RETURN_IF_ERROR(PrintJson(output, context.io.out));
  } else {
    Print(output, context.io.out);
    NoteRemarks(first.remarks, context);
    NoteRemarks(second.remarks, context);
  }
  return output.same() ? kExitFine : kExitMismatch;
}

}  // namespace

void AddDiff(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "diff", "Compare the tensors of two checkpoints, of any formats (no daemon needed)",
      "Says which names only one of them has, and where dtypes, shapes or values differ, and by how\n"
      "much. Exit code 5 says that something differs.\n\n"
      "Examples:\n"
      "  ckptctl diff checkpoint-500/pytorch_model_fsdp_0 model.safetensors\n"
      "  ckptctl diff last.ckpt model/ --include '*.weight' --rename '^model\\.='\n");
  auto options = std::make_shared<Options>();
  verb->add_option("FIRST", options->a, "A checkpoint as inspect takes it")->required();
  verb->add_option("SECOND", options->b, "Another one")->required();
  AddChoiceOptions(*verb, "names of the first", options->choice);
  verb->callback([options, &context] {
    context.action = [options, &context] { return Run(*options, context); };
  });
}

}  // namespace ckptd::cli
