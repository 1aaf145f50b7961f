#include "common/source/formats/safetensors/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

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

bool IsTorch(std::string_view name) {
  return EndsWithAny(name, {".bin", ".pt", ".pth", ".ckpt", ".bin.index.json"});
}

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
  } else if (name == "config.json") {
    out.has_config = true;
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

// The first folders in `folder` that hold safetensors, by name.
std::vector<std::string> FoldersBelow(const Storage& storage, const std::string& folder) {
  constexpr size_t kMostLookedAt = 64;
  constexpr size_t kMostNamed = 3;
  std::vector<std::string> names;
  // Without them the error has one hint less.
  storage
      .List(folder,
            [&names](std::string_view name) {
              names.emplace_back(name);
              return names.size() < kMostLookedAt;
            })
      .IgnoreError();
  std::sort(names.begin(), names.end());
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const absl::StatusOr<Listing> below = ListSource(storage, folder + "/" + name);
    const bool holds = below.ok() && below->is_folder && !ContentsOf(*below).safetensors.empty();
    if (holds) found.push_back(name);
    if (found.size() == kMostNamed) break;
  }
  return found;
}

}  // namespace

FolderContents ContentsOf(const Listing& listing) {
  FolderContents out;
  for (const std::string& name : listing.names) Classify(name, out);
  return out;
}

absl::Status NothingToLoad(const Storage& storage, const std::string& folder,
                           const FolderContents& contents) {
  if (!contents.dcp.empty()) return Unsupported(folder, Sample(contents.dcp), kDcpAdvice);
  if (!contents.torch.empty()) return Unsupported(folder, Sample(contents.torch), kTorchAdvice);
  if (!contents.gguf.empty()) return Unsupported(folder, Sample(contents.gguf), kGgufAdvice);
  std::string advice = "name a .safetensors file, an index.json or the folder that holds them";
  const std::vector<std::string> below = FoldersBelow(storage, folder);
  if (contents.has_snapshots) {
    advice =
        "it looks like a model's folder in a Hugging Face cache: name the revision inside, "
        "snapshots/<revision>";
  } else if (!below.empty()) {
    advice = fmt::format("name the one below that holds them: {}",
                         fmt::join(below.begin(), below.end(), ", "));
  }
  return MakeError(
      absl::StatusCode::kNotFound, reason::kSourceNotFound,
      fmt::format("opening {}: no .safetensors file in this folder; {}", folder, advice),
      {{"file", folder}});
}

absl::Status CheckExtension(const std::string& path) {
  if (IsTorch(path)) {
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

}  // namespace ckptd
