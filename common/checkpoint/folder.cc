#include "common/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/checkpoint/locate.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTorchAdvice =
    "PyTorch files (pickles) are not read: convert them, for example by loading the model and "
    "calling save_pretrained(..., safe_serialization=True), and load the result";
constexpr std::string_view kDcpAdvice =
    "PyTorch distributed checkpoints (DCP) are not read: save the model with "
    "HuggingFaceStorageWriter(save_distributed=True, enable_consolidation=True), or convert it "
    "with torch.distributed.checkpoint.format_utils.dcp_to_torch_save and save the model's own "
    "dict of tensors in it as safetensors";
constexpr std::string_view kGgufAdvice = "GGUF is not read: load the safetensors it was made from";

bool EndsWithAny(std::string_view name, std::initializer_list<std::string_view> extensions) {
  return std::any_of(extensions.begin(), extensions.end(),
                     [name](std::string_view end) { return name.ends_with(end); });
}

bool IsTorch(std::string_view name) { return EndsWithAny(name, {".bin", ".pt", ".pth", ".ckpt"}); }

void Classify(std::string name, FolderContents& out) {
  if (name == ".metadata") {
    out.dcp.push_back(std::move(name));
  } else if (name.starts_with('.')) {
    return;
  } else if (name.ends_with(".safetensors")) {
    out.safetensors.push_back(std::move(name));
  } else if (name.ends_with(".safetensors.index.json")) {
    out.indices.push_back(std::move(name));
  } else if (name.ends_with(".distcp")) {
    out.dcp.push_back(std::move(name));
  } else if (IsTorch(name)) {
    out.torch.push_back(std::move(name));
  } else if (name.ends_with(".gguf")) {
    out.gguf.push_back(std::move(name));
  } else if (name == "snapshots") {
    out.has_snapshots = true;
  }
}

absl::Status Unsupported(const std::string& path, std::string_view found, std::string_view advice) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("opening {}: {}; {}", path, found, advice), {{"file", path}});
}

// "12 such files, pytorch_model-00001-of-00012.bin first".
std::string Sample(const std::vector<std::string>& names) {
  return names.size() == 1 ? fmt::format("it holds no safetensors but {}", names[0])
                           : fmt::format("it holds no safetensors but {} files such as {}",
                                         names.size(), names[0]);
}

// <stem>-<number>-of-<count>.safetensors
struct SeriesPart {
  std::string stem;
  uint32_t number = 0;
  uint32_t count = 0;
};

std::optional<uint32_t> Digits(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.size() != 5 || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<SeriesPart> ParseSeriesPart(std::string_view name) {
  constexpr std::string_view kPattern = "-00000-of-00000.safetensors";
  if (name.size() < kPattern.size()) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kPattern.size());
  const std::optional<uint32_t> number = Digits(tail.substr(1, 5));
  const std::optional<uint32_t> count = Digits(tail.substr(10, 5));
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !number || !count) return std::nullopt;
  return SeriesPart{std::string(name.substr(0, name.size() - kPattern.size())), *number, *count};
}

}  // namespace

absl::StatusOr<FolderContents> ListFolder(const std::string& folder) {
  FolderContents out;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  size_t seen = 0;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (++seen > kMaxFolderEntries) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                       fmt::format("opening {}: more than {} entries in this folder; name the "
                                   "index or the file to load",
                                   folder, kMaxFolderEntries),
                       {{"file", folder}});
    }
    Classify(entry->path().filename().string(), out);
  }
  if (error) {
    return WithFact(ErrnoStatus(error.value(), "listing folder " + folder), "file", folder);
  }
  for (auto* names : {&out.safetensors, &out.indices, &out.torch, &out.dcp, &out.gguf}) {
    std::sort(names->begin(), names->end());
  }
  return out;
}

absl::Status NothingToLoad(const std::string& folder, const FolderContents& contents) {
  if (!contents.dcp.empty()) return Unsupported(folder, Sample(contents.dcp), kDcpAdvice);
  if (!contents.torch.empty()) return Unsupported(folder, Sample(contents.torch), kTorchAdvice);
  if (!contents.gguf.empty()) return Unsupported(folder, Sample(contents.gguf), kGgufAdvice);
  const std::string_view advice =
      contents.has_snapshots
          ? "it looks like a model's folder in a Hugging Face cache: name the revision inside, "
            "snapshots/<revision>"
          : "name a .safetensors file, an index.json or the folder that holds them";
  return MakeError(
      absl::StatusCode::kNotFound, reason::kSourceNotFound,
      fmt::format("opening {}: no .safetensors file in this folder; {}", folder, advice),
      {{"file", folder}});
}

absl::Status CheckExtension(const std::string& path) {
  if (IsTorch(path) || path.ends_with(".bin.index.json")) {
    return Unsupported(path, "by its name it is not safetensors", kTorchAdvice);
  }
  if (path.ends_with(".distcp") || path.ends_with("/.metadata")) {
    return Unsupported(path, "by its name it is not safetensors", kDcpAdvice);
  }
  if (path.ends_with(".gguf")) {
    return Unsupported(path, "by its name it is not safetensors", kGgufAdvice);
  }
  return absl::OkStatus();
}

absl::Status CheckSeriesComplete(const std::string& folder, const std::vector<std::string>& names) {
  // Names are sorted, so the numbers of each series come in order.
  std::map<std::pair<std::string, uint32_t>, uint32_t> next;
  for (const std::string& name : names) {
    const std::optional<SeriesPart> part = ParseSeriesPart(name);
    if (!part.has_value()) continue;
    uint32_t& expected = next.try_emplace({part->stem, part->count}, 1).first->second;
    // Some writers count from 0; their last number is then count - 1.
    if (part->number == expected) ++expected;
  }
  for (const auto& [series, expected] : next) {
    const uint32_t count = series.second;
    if (expected > count) continue;
    const std::string missing =
        fmt::format("{}-{:05}-of-{:05}.safetensors", series.first, expected, count);
    const std::string zero = fmt::format("{}-{:05}-of-{:05}.safetensors", series.first, 0, count);
    const bool from_zero = std::binary_search(names.begin(), names.end(), zero);
    if (from_zero && expected == count) continue;
    return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                     fmt::format("opening {}: {} is missing, the other files of its series are "
                                 "there; finish the download, or name the files by an index",
                                 folder, missing),
                     {{"file", folder + "/" + missing}});
  }
  return absl::OkStatus();
}

}  // namespace ckptd
