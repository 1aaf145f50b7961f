#include "common/source/formats/safetensors/folder.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace ckptd {
namespace {

bool EndsWithAny(std::string_view name, std::initializer_list<std::string_view> extensions) {
  return std::any_of(extensions.begin(), extensions.end(),
                     [name](std::string_view end) { return name.ends_with(end); });
}

bool IsTorch(std::string_view name) {
  return EndsWithAny(name, {".bin", ".pt", ".pth", ".ckpt", ".bin.index.json"});
}

void Classify(std::string name, FolderContents& out) {
  if (name.starts_with('.')) return;
  if (name.ends_with(".safetensors")) {
    out.safetensors.push_back(std::move(name));
  } else if (name.ends_with(".safetensors.index.json")) {
    out.indices.push_back(std::move(name));
  } else if (IsTorch(name)) {
    out.torch.push_back(std::move(name));
  } else if (name == "config.json") {
    out.has_config = true;
  }
}

}  // namespace

FolderContents ContentsOf(const Listing& listing) {
  FolderContents out;
  for (const std::string& name : listing.names) Classify(name, out);
  return out;
}

}  // namespace ckptd
