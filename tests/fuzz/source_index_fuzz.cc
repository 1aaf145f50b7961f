// Feeds arbitrary text to the parser of index.json and, as the headers of the files
// that it names, to what makes one index of them.
//
// The input is the text of the index and, after lines "--- BYTES", the headers of
// its files in the order of their names; BYTES is the size of each one's data. An
// empty index stands for a folder without one.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/source/safetensors/header.h"
#include "common/source/weight_map/index_json.h"
#include "common/source/formats/safetensors/merge.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

constexpr std::string_view kSeparator = "\n--- ";
constexpr size_t kMaxFiles = 4;

struct Part {
  std::string_view text;
  uint64_t bytes = 0;  // of data
};

std::vector<Part> Split(std::string_view input) {
  std::vector<Part> parts(1);
  for (;;) {
    const size_t end = input.find(kSeparator);
    parts.back().text = input.substr(0, end);
    if (end == std::string_view::npos) return parts;
    input.remove_prefix(end + kSeparator.size());
    Part part;
    const char* const stop = input.data() + input.size();
    const char* const line = std::from_chars(input.data(), stop, part.bytes).ptr;
    input.remove_prefix(static_cast<size_t>(line - input.data()));
    if (input.starts_with('\n')) input.remove_prefix(1);
    parts.push_back(part);
  }
}

void CheckIndexJson(const IndexJson& index) {
  Require(!index.weight_map.empty(), "an index lists tensors");
  for (const auto& [tensor, file] : index.weight_map) {
    Require(file.ends_with(".safetensors"), "files are safetensors: " + file);
    Require(!file.starts_with('/') && !file.starts_with("../"), "files are in the folder: " + file);
    Require(file.find("/../") == std::string::npos, "files stay in the folder: " + file);
    Require(file.find('\0') == std::string::npos, "files have no NUL");
  }
}

void CheckMerged(const CheckpointIndex& merged) {
  for (size_t i = 0; i < merged.tensors.size(); ++i) {
    const TensorEntry& tensor = merged.tensors[i];
    Require(i == 0 || merged.tensors[i - 1].name < tensor.name, "tensors are sorted, once each");
    Require(merged.Find(tensor.name) == &tensor, "a tensor is found");
    Require(tensor.pieces.size() == 1, "a tensor is in one file");
    const Piece& piece = tensor.pieces.front();
    Require(piece.file < merged.files.size(), "its file exists");
    const uint64_t room = merged.files[piece.file].bytes;
    Require(piece.offset <= room && piece.bytes <= room - piece.offset, "it is in its file");
  }
  for (const auto& [alias, name] : merged.aliases) {
    const TensorEntry* const tensor = merged.Find(name);
    Require(tensor != nullptr && tensor->name == name, "an alias names a tensor: " + name);
    Require(merged.Find(alias) == tensor, "an alias is none of the tensors: " + alias);
  }
}

// The headers as those of the files in located.names.
void Merge(const LocatedFiles& located, const std::vector<Part>& parts) {
  IndexMerger merger(located);
  for (size_t i = 0; i < located.names.size(); ++i) {
    const Part part = i + 1 < parts.size() ? parts[i + 1] : Part{"{}", 0};
    if (part.bytes > uint64_t{1} << 62) return;
    SafetensorsFile file;
    file.data_start = kHeaderLengthBytes + part.text.size();
    file.file.path = "/c/" + located.names[i];
    file.file.bytes = file.data_start + part.bytes;
    auto header = ParseSafetensorsHeader(part.text, file.file.bytes);
    if (!header.ok()) return RequireGoodError(header.status());
    file.header = std::move(header).value();
    if (const absl::Status added = merger.Add(std::move(file)); !added.ok()) {
      return RequireGoodError(added);
    }
  }
  const auto merged = merger.Finish();
  if (!merged.ok()) return RequireGoodError(merged.status());
  CheckMerged(*merged);
}

void FuzzSource(std::string_view input) {
  const std::vector<Part> parts = Split(input);
  LocatedFiles located;
  located.folder = "/c";
  if (parts.front().text.empty()) {
    for (size_t i = 1; i < parts.size() && i <= kMaxFiles; ++i) {
      located.names.push_back(std::to_string(i) + ".safetensors");
    }
    return Merge(located, parts);
  }
  auto index = ParseIndexJson(parts.front().text);
  if (!index.ok()) return RequireGoodError(index.status());
  CheckIndexJson(*index);
  std::set<std::string> names;
  for (const auto& entry : index->weight_map) names.insert(entry.second);
  if (names.size() > kMaxFiles) return;
  located.names.assign(names.begin(), names.end());
  located.index_path = "/c/model.safetensors.index.json";
  located.index = *std::move(index);
  Merge(located, parts);
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzSource({reinterpret_cast<const char*>(data), size});
  return 0;
}
