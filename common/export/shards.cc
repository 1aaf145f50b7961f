#include "common/export/shards.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "common/base/json.h"

namespace ckptd {
namespace {

std::string Json(std::string_view text) { return JsonString(text, JsonCharacters::kAscii); }

// As Python sorts: by code points, which is the order of UTF-8's bytes. Values are JSON.
void AddObject(std::string_view key, const std::map<std::string, std::string>& values,
               std::string& out) {
  out += fmt::format("  {}: {{", Json(key));
  bool first = true;
  for (const auto& [name, value] : values) {
    out += fmt::format("{}\n    {}: {}", first ? "" : ",", Json(name), value);
    first = false;
  }
  out += first ? "}" : "\n  }";
}

}  // namespace

std::optional<uint64_t> ParseShardSize(std::string_view text) {
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  double unit = 1;
  if (text.size() > 2 && std::isalpha(static_cast<unsigned char>(text.back())) != 0) {
    std::string name(text.substr(text.size() - 2));
    for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const std::map<std::string_view, double> units = {
        {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}};
    const auto found = units.find(name);
    if (found == units.end()) return std::nullopt;
    unit = found->second;
    text.remove_suffix(2);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  const double bytes = number * unit;
  if (!(bytes >= 1) || bytes > 1e18) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

std::vector<std::vector<size_t>> SplitIntoShards(const std::vector<OutTensor>& tensors,
                                                 uint64_t limit) {
  std::vector<std::vector<size_t>> shards;
  std::vector<size_t> current;
  uint64_t bytes = 0;
  std::vector<size_t> empty;  // tensors without bytes behind the first one
  std::optional<size_t> first_empty;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t size = tensors[i].bytes;
    if (size == 0 && first_empty.has_value()) {
      empty.push_back(i);
      continue;
    }
    if (size == 0) first_empty = i;
    if (size > limit) {
      shards.push_back({i});
      continue;
    }
    if (bytes + size > limit) {
      shards.push_back(std::exchange(current, {}));
      bytes = 0;
    }
    current.push_back(i);
    bytes += size;
  }
  if (!current.empty()) shards.push_back(std::move(current));
  for (std::vector<size_t>& shard : shards) {
    for (const size_t i : shard) {
      if (i != first_empty) continue;
      shard.insert(shard.end(), empty.begin(), empty.end());
      return shards;
    }
  }
  return shards;
}

std::string ShardName(std::string_view name, size_t number, size_t count) {
  if (count == 1) return std::string(name);
  const size_t dot = name.rfind('.');
  return fmt::format("{}-{:05}-of-{:05}{}", name.substr(0, dot), number + 1, count,
                     name.substr(dot));
}

std::string IndexJson(uint64_t total_bytes, const std::map<std::string, std::string>& metadata,
                      const std::map<std::string, std::string>& file_of) {
  std::map<std::string, std::string> facts;
  for (const auto& [key, value] : metadata) facts[key] = Json(value);
  facts["total_size"] = std::to_string(total_bytes);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : file_of) files[tensor] = Json(file);
  std::string out = "{\n";
  AddObject("metadata", facts, out);
  out += ",\n";
  AddObject("weight_map", files, out);
  return out + "\n}\n";
}

}  // namespace ckptd
