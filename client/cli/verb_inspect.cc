#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/output.pb.h"
#include "client/cli/table.h"
#include "client/cli/tensor_tree.h"
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
  std::string view;
  bool tensors = false;
  bool tree = false;
  bool values = false;
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

// Tensors by what they are to a training, where that is more than parameters.
void PrintKinds(const CheckpointIndex& index, std::ostream& out) {
  using Kind = std::pair<std::string, EntryKind>;
  std::map<Kind, std::pair<uint64_t, uint64_t>> kinds;
  for (const TensorEntry& tensor : index.tensors) {
    auto& [count, bytes] = kinds[{index.groups[tensor.group], tensor.kind}];
    ++count;
    bytes += BytesOf(tensor);
  }
  const bool plain = kinds.size() == 1 && kinds.begin()->first == Kind("", EntryKind::kParameter);
  if (kinds.empty() || plain) return;
  Table table({{"KIND"}, {"GROUP"}, {"TENSORS", Table::Align::kRight}, {"SIZE", Table::Align::kRight}});
  for (const auto& [kind, sum] : kinds) {
    table.AddRow({std::string(NameOf(kind.second)), kind.first, std::to_string(sum.first),
                  HumanBytes(sum.second)});
  }
  out << '\n';
  table.Print(out);
}

void PrintDtypes(const CheckpointIndex& index, std::ostream& out) {
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
}

// Headers are not worth a column.
bool IsWaste(uint64_t unused, const SourceFile& file) {
  constexpr uint64_t kLeast = 64 << 10;
  return unused >= kLeast && unused >= file.bytes / 16;
}

void PrintFiles(const CheckpointIndex& index, std::ostream& out) {
  const std::vector<uint64_t> unused = UnusedBytes(index);
  bool wastes = false;
  for (size_t i = 0; i < unused.size(); ++i) wastes = wastes || IsWaste(unused[i], index.files[i]);
  std::vector<Table::Column> columns = {{"FILE"}, {"SIZE", Table::Align::kRight}};
  if (wastes) columns.push_back({"NOT LOADED", Table::Align::kRight});
  Table files(std::move(columns));
  for (size_t i = 0; i < unused.size(); ++i) {
    std::vector<std::string> row = {TextOfPath(index.files[i].path), HumanBytes(index.files[i].bytes)};
    if (wastes) row.push_back(HumanBytes(unused[i]));
    files.AddRow(row);
  }
  out << '\n';
  files.Print(out);
}

// Some of what is no tensor, or all of it.
void PrintValues(const SourceInfo& source, bool all, std::ostream& out) {
  constexpr size_t kFew = 8;
  constexpr size_t kColumns = 100;
  const auto print = [&](const std::map<std::string, std::string>& texts, std::string_view title,
                         uint64_t count) {
    if (texts.empty()) return;
    Table table({{std::string(title)}, {""}});
    size_t shown = 0;
    for (const auto& [path, text] : texts) {
      if (!all && shown == kFew) break;
      ++shown;
      table.AddRow({path, all ? text : Shorten(text, kColumns)});
    }
    out << '\n';
    table.Print(out);
    if (shown < count) out << fmt::format("and {} more (--values lists them)\n", count - shown);
  };
  print(source.index.values, "VALUE", source.value_count);
  print(source.index.opaque, "OBJECT, NOT BUILT", source.opaque_count);
}

std::string Unless0(uint64_t count) { return count == 0 ? "" : std::to_string(count); }

void PrintSummary(const SourceInfo& source, std::ostream& out) {
  const CheckpointIndex& index = source.index;
  PrintFields({{"source", TextOfPath(index.source)},
               {"format", index.format},
               {"tensors", fmt::format("{} ({})", source.tensor_count,
                                       HumanBytes(source.tensor_bytes))},
               {"tied names", Unless0(index.aliases.size())},
               {"values", Unless0(source.value_count)},
               {"objects", Unless0(source.opaque_count)}},
              out);
  PrintKinds(index, out);
  PrintDtypes(index, out);
  PrintFiles(index, out);
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
  added.set_big_endian(tensor.big_endian);
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

InspectOutput ToOutput(const SourceInfo& source, bool tensors, bool values) {
  const CheckpointIndex& index = source.index;
  InspectOutput out;
  out.set_source(TextOfPath(index.source));
  out.set_source_identity(source.identity);
  out.set_format(index.format);
  const std::vector<uint64_t> unused = UnusedBytes(index);
  for (size_t i = 0; i < unused.size(); ++i) {
    InspectOutput::File& added = *out.add_files();
    added.set_path(TextOfPath(index.files[i].path));
    added.set_bytes(index.files[i].bytes);
    added.set_unused_bytes(unused[i]);
  }
  out.set_tensor_count(source.tensor_count);
  out.set_tensor_bytes(source.tensor_bytes);
  out.mutable_metadata()->insert(index.metadata.begin(), index.metadata.end());
  out.mutable_aliases()->insert(index.aliases.begin(), index.aliases.end());
  for (const std::string& remark : source.remarks) out.add_remarks(MessageText(remark));
  out.set_value_count(source.value_count);
  out.set_opaque_count(source.opaque_count);
  if (values) {
    for (const auto& [path, json] : index.values) (*out.mutable_values())[MessageText(path)] = MessageText(json);
    for (const auto& [path, name] : index.opaque) (*out.mutable_opaque())[MessageText(path)] = MessageText(name);
  }
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
  for (auto* const texts : {&index.values, &index.opaque}) {
    std::erase_if(*texts, [&pattern](const auto& text) { return !MatchesGlob(pattern, text.first); });
  }
}

bool HasTensors(const CheckpointIndex& index) {
  return !index.tensors.empty() || !index.aliases.empty();
}
bool HasValues(const CheckpointIndex& index) {
  return !index.values.empty() || !index.opaque.empty();
}

absl::StatusOr<SourceInfo> Read(const Options& options, const Context& context) {
  if (!options.remote) return InspectOffline(options.path, options.view);
  CKPTD_ASSIGN_OR_RETURN(const std::string source, AbsolutePath(options.path));
  CKPTD_ASSIGN_OR_RETURN(const std::string view, ViewText(options.view, source));
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  return client.Inspect(source, options.values, view);
}

absl::StatusOr<int> Run(const Options& options, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(SourceInfo source, Read(options, context));
  // A pattern alone lists the tensors whose names match.
  const bool lists = options.tree || options.values;
  const bool tensors = options.tensors || (!options.filter.empty() && !lists);
  if (!options.filter.empty()) KeepMatching(options.filter, source.index);
  std::ostream& out = context.io.out;
  if (context.json()) {
    CKPTD_RETURN_IF_ERROR(PrintJson(ToOutput(source, tensors || options.tree, options.values), out));
    return kExitFine;
  }
  if (tensors) PrintTensors(source.index, out);
  if (options.tree) PrintTree(source.index, out);
  if (!tensors && !lists) PrintSummary(source, out);
  if (!tensors && !options.tree) PrintValues(source, options.values, out);
  if (!tensors && !options.tree) PrintRemarks(source.remarks, out);
  const bool found = ((tensors || options.tree) && HasTensors(source.index)) ||
                     (options.values && HasValues(source.index));
  if (!options.filter.empty() && !found) {
    context.Note(fmt::format("no name matches {}; leave out --filter to see all", options.filter));
  } else if (options.values && !tensors && !found) {
    context.Note("there is nothing but tensors; leave out --values to see these");
  }
  return kExitFine;
}

}  // namespace

void AddInspect(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "inspect", "Show what a checkpoint's files hold (no daemon needed)",
                           "Of a folder the files are read that transformers reads; notes say what was left out.\n"
                           "PATH#PART shows one part of a source that has several.\n\n"
                           "Examples:\n"
                           "  ckptctl inspect /models/llama\n"
                           "  ckptctl inspect hf://org/name@main\n"
                           "  ckptctl inspect /models/llama --filter 'model.layers.0.*'\n"
                           "  ckptctl inspect model.safetensors --tensors --output json\n"
                           "  ckptctl inspect /models/llama --tree\n"
                           "  ckptctl inspect /models/gpt2 --tensors --view '{\"rules\": [{\"transpose\": \".*c_attn\\.weight\"}]}'\n");
  auto options = std::make_shared<Options>();
  verb->add_option("PATH", options->path, "A file, an index.json, a folder, or a model in the hub's cache")
      ->required();
  verb->add_flag("--tensors", options->tensors, "List every tensor");
  verb->add_flag("--tree", options->tree, "Show the modules that names spell, with their sizes");
  verb->add_flag("--values", options->values,
                 "List what is no tensor: plain values, and objects, which are not built");
  verb->add_option("--filter", options->filter,
                   "List the tensors whose names match this pattern (* and ?)")
      ->type_name("GLOB");
  AddViewOption(*verb, options->view);
  verb->add_flag("--remote", options->remote, "Let the daemon read the files, as it sees them");
  verb->callback([options, &context] {
    context.action = [options, &context] { return Run(*options, context); };
  });
}

}  // namespace ckptd::cli
