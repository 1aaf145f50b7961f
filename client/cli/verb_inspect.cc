#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/output.pb.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/layout/glob.h"
#include "common/source/open.h"
#include "common/source/path_text.h"
#include "common/source/piece.h"

namespace ckptd::cli {
namespace {

struct Options {
  std::string path;
  bool tensors = false;
  std::string filter;
  bool remote = false;
};

void PrintTensors(const CheckpointIndex& index, std::ostream& out) {
  Table table({{"NAME"}, {"DTYPE"}, {"SHAPE"}, {"SIZE", Table::Align::kRight}, {"FILE"}});
  for (const TensorEntry& tensor : index.tensors) {
    const std::string path = TextOfPath(index.files[tensor.pieces.front().file].path);
    std::string file = path.substr(path.rfind('/') + 1);
    if (tensor.pieces.size() > 1) file += fmt::format(" and {} more", tensor.pieces.size() - 1);
    table.AddRow({tensor.name, std::string(NameOf(tensor.dtype)), JoinShape(tensor.shape),
                  HumanBytes(BytesOf(tensor)), std::move(file)});
  }
  table.Print(out);
  for (const auto& alias : index.aliases) {
    out << Escape(alias.first) << " is " << Escape(alias.second) << '\n';
  }
}

void PrintSummary(const SourceInfo& source, std::ostream& out) {
  const CheckpointIndex& index = source.index;
  PrintFields({{"source", TextOfPath(index.source)},
               {"tensors", fmt::format("{} ({})", source.tensor_count,
                                       HumanBytes(source.tensor_bytes))},
               {"tied names", index.aliases.empty() ? "" : std::to_string(index.aliases.size())}},
              out);
  std::map<std::string_view, std::pair<uint64_t, uint64_t>> by_dtype;
  for (const TensorEntry& tensor : index.tensors) {
    auto& entry = by_dtype[NameOf(tensor.dtype)];
    entry.first += 1;
    entry.second += BytesOf(tensor);
  }
  Table dtypes({{"DTYPE"}, {"TENSORS", Table::Align::kRight}, {"SIZE", Table::Align::kRight}});
  for (const auto& entry : by_dtype) {
    dtypes.AddRow({std::string(entry.first), std::to_string(entry.second.first),
                   HumanBytes(entry.second.second)});
  }
  out << '\n';
  dtypes.Print(out);
  Table files({{"FILE"}, {"SIZE", Table::Align::kRight}});
  for (const SourceFile& file : index.files) {
    files.AddRow({TextOfPath(file.path), HumanBytes(file.bytes)});
  }
  out << '\n';
  files.Print(out);
  PrintRemarks(source.remarks, out);
}

void AddTensor(const CheckpointIndex& index, const TensorEntry& tensor, InspectOutput& out) {
  InspectOutput::Tensor& added = *out.add_tensors();
  added.set_name(tensor.name);
  added.set_dtype(std::string(NameOf(tensor.dtype)));
  added.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  added.set_kind(std::string(NameOf(tensor.kind)));
  added.set_group(index.groups[tensor.group]);
  added.set_file(TextOfPath(index.files[tensor.pieces.front().file].path));
  added.set_offset(tensor.pieces.front().offset);
  added.set_bytes(BytesOf(tensor));
  if (tensor.pieces.size() == 1 && tensor.pieces.front().strides.empty()) return;
  for (const Piece& piece : tensor.pieces) {
    InspectOutput::Piece& part = *added.add_pieces();
    part.set_file(TextOfPath(index.files[piece.file].path));
    part.set_offset(piece.offset);
    part.set_bytes(piece.bytes);
    part.mutable_begin()->Add(piece.box.offsets.begin(), piece.box.offsets.end());
    part.mutable_shape()->Add(piece.box.extents.begin(), piece.box.extents.end());
    const Shape strides = StridesOf(piece);
    part.mutable_strides()->Add(strides.begin(), strides.end());
  }
}

InspectOutput ToOutput(const SourceInfo& source, bool tensors) {
  const CheckpointIndex& index = source.index;
  InspectOutput out;
  out.set_source(TextOfPath(index.source));
  out.set_source_identity(source.identity);
  for (const SourceFile& file : index.files) {
    InspectOutput::File& added = *out.add_files();
    added.set_path(TextOfPath(file.path));
    added.set_bytes(file.bytes);
  }
  out.set_tensor_count(source.tensor_count);
  out.set_tensor_bytes(source.tensor_bytes);
  out.mutable_metadata()->insert(index.metadata.begin(), index.metadata.end());
  out.mutable_aliases()->insert(index.aliases.begin(), index.aliases.end());
  for (const std::string& remark : source.remarks) out.add_remarks(MessageText(remark));
  if (!tensors) return out;
  for (const TensorEntry& tensor : index.tensors) AddTensor(index, tensor, out);
  return out;
}

void KeepMatching(const std::string& pattern, CheckpointIndex& index) {
  std::erase_if(index.tensors, [&pattern](const TensorEntry& tensor) {
    return !MatchesGlob(pattern, tensor.name);
  });
  std::erase_if(index.aliases,
                [&pattern](const auto& alias) { return !MatchesGlob(pattern, alias.first); });
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
  if (!options.filter.empty()) KeepMatching(options.filter, source.index);
  if (context.json()) {
    CKPTD_RETURN_IF_ERROR(PrintJson(ToOutput(source, tensors), context.io.out));
  } else if (tensors) {
    PrintTensors(source.index, context.io.out);
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
