#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/cli/exit_codes.h"
#include "client/cli/json_views.h"
#include "client/cli/offline.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/layout/glob.h"
#include "common/source/open.h"

namespace ckptd::cli {
namespace {

struct Options {
  std::string path;
  bool tensors = false;
  std::string filter;
  bool remote = false;
};

void PrintTensors(const SourceInfo& source, std::ostream& out) {
  Table table({{"NAME"}, {"DTYPE"}, {"SHAPE"}, {"SIZE", Table::Align::kRight}, {"FILE"}});
  for (const SourceTensor& tensor : source.tensors) {
    const std::string& path = source.files[tensor.file].path;
    std::string file = path.substr(path.rfind('/') + 1);
    if (tensor.pieces.size() > 1) file += fmt::format(" and {} more", tensor.pieces.size() - 1);
    table.AddRow({tensor.name, std::string(NameOf(tensor.dtype)), JoinShape(tensor.shape),
                  HumanBytes(tensor.bytes), std::move(file)});
  }
  table.Print(out);
  for (const auto& alias : source.aliases) {
    out << Escape(alias.first) << " is " << Escape(alias.second) << '\n';
  }
}

void PrintSummary(const SourceInfo& source, std::ostream& out) {
  PrintFields({{"source", source.source},
               {"tensors", fmt::format("{} ({})", source.tensor_count,
                                       HumanBytes(source.tensor_bytes))},
               {"tied names", source.aliases.empty() ? "" : std::to_string(source.aliases.size())}},
              out);
  std::map<std::string_view, std::pair<uint64_t, uint64_t>> by_dtype;
  for (const SourceTensor& tensor : source.tensors) {
    auto& entry = by_dtype[NameOf(tensor.dtype)];
    entry.first += 1;
    entry.second += tensor.bytes;
  }
  Table dtypes({{"DTYPE"}, {"TENSORS", Table::Align::kRight}, {"SIZE", Table::Align::kRight}});
  for (const auto& entry : by_dtype) {
    dtypes.AddRow({std::string(entry.first), std::to_string(entry.second.first),
                   HumanBytes(entry.second.second)});
  }
  out << '\n';
  dtypes.Print(out);
  Table files({{"FILE"}, {"SIZE", Table::Align::kRight}});
  for (const FileSize& file : source.files) files.AddRow({file.path, HumanBytes(file.bytes)});
  out << '\n';
  files.Print(out);
  PrintRemarks(source.remarks, out);
}

void KeepMatching(const std::string& pattern, SourceInfo& source) {
  auto& tensors = source.tensors;
  tensors.erase(std::remove_if(tensors.begin(), tensors.end(),
                               [&pattern](const SourceTensor& tensor) {
                                 return !MatchesGlob(pattern, tensor.name);
                               }),
                tensors.end());
  for (auto at = source.aliases.begin(); at != source.aliases.end();) {
    at = MatchesGlob(pattern, at->first) ? std::next(at) : source.aliases.erase(at);
  }
}

absl::StatusOr<SourceInfo> Read(const Options& options, const Context& context) {
  if (!options.remote) return InspectOffline(options.path);
  CKPTD_ASSIGN_OR_RETURN(const std::string source, AbsolutePath(options.path));
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  return client.Inspect(source);
}

absl::StatusOr<int> Run(const Options& options, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(SourceInfo source, Read(options, context));
  const bool tensors = options.tensors || !options.filter.empty();
  if (!options.filter.empty()) KeepMatching(options.filter, source);
  if (context.json()) {
    context.io.out << ToJson(source, tensors) << '\n';
  } else if (tensors) {
    PrintTensors(source, context.io.out);
  } else {
    PrintSummary(source, context.io.out);
  }
  return kExitFine;
}

}  // namespace

void AddInspect(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "inspect", "Show what a checkpoint's files hold (no daemon needed)",
                           "Of a folder the files are read that transformers reads; notes say what was left out.\n\n"
                           "Examples:\n"
                           "  ckptctl inspect /models/llama\n"
                           "  ckptctl inspect hf://org/name@main\n"
                           "  ckptctl inspect /models/llama --filter 'model.layers.0.*'\n"
                           "  ckptctl inspect model.safetensors --tensors --output json\n");
  auto options = std::make_shared<Options>();
  verb->add_option("PATH", options->path, "A .safetensors file, an index.json, a folder, or a model in the hub's cache")
      ->required();
  verb->add_flag("--tensors", options->tensors, "List every tensor");
  verb->add_option("--filter", options->filter,
                   "List the tensors whose names match this pattern (* and ?)")
      ->type_name("GLOB");
  verb->add_flag("--remote", options->remote, "Let the daemon read the files, as it sees them");
  verb->callback([options, &context] {
    context.action = [options, &context] { return Run(*options, context); };
  });
}

}  // namespace ckptd::cli
