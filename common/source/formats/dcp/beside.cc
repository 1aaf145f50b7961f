#include "common/source/formats/dcp/beside.h"

#include <fmt/format.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/text.h"
#include "common/source/torch/file.h"
#include "common/source/torch/flatten.h"

namespace ckptd::dcp {
namespace {

constexpr size_t kMaxJsonBytes = 1'000'000;

bool IsAboutContent(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return reason == reason::kSourceInvalid || reason == reason::kSourceUnsupported;
}

absl::Status AddTorchFile(const Storage& storage, const std::string& path, CheckpointIndex& index) {
  CKPTD_ASSIGN_OR_RETURN(torch::File file, torch::ReadFile(storage, path));
  CKPTD_ASSIGN_OR_RETURN(torch::Flattened flat,
                         torch::Flatten(file, *file.document.root, ""));
  if (index.values.size() + index.opaque.size() + flat.values.size() + flat.opaque.size() >
      kMaxSourceValues) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("reading {}: with it there are more than {} plain values", path,
                                 kMaxSourceValues),
                     {{"file", path}});
  }
  index.values.merge(flat.values);
  index.opaque.merge(flat.opaque);
  index.files.push_back(std::move(file.file));
  return absl::OkStatus();
}

// {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
absl::Status AddJson(const Storage& storage, const std::string& path, CheckpointIndex& index) {
  CKPTD_ASSIGN_OR_RETURN(TextObject read, ReadText(storage, path, kMaxJsonBytes));
  rapidjson::Document json;
  if (ParseJson(read.text, JsonNumbers::kExact, json).has_value() || !json.IsObject()) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                     fmt::format("reading {}: it is no JSON object", path), {{"file", path}});
  }
  for (const auto& [name, value] : json.GetObject()) {
    const std::string key(name.GetString(), name.GetStringLength());
    if (value.IsString()) {
      index.metadata.emplace(key, std::string(value.GetString(), value.GetStringLength()));
    } else if (value.IsInt64()) {
      index.metadata.emplace(key, std::to_string(value.GetInt64()));
    }
  }
  index.files.push_back(std::move(read.identity));
  return absl::OkStatus();
}

}  // namespace

absl::Status AddFilesBeside(const Storage& storage, const Listing& folder,
                            OpenedCheckpoint& opened) {
  for (const std::string_view name : {"common.pt", "meta.pt", "metadata.json"}) {
    if (!std::binary_search(folder.names.begin(), folder.names.end(), name)) continue;
    const std::string path = folder.source + "/" + std::string(name);
    const absl::Status added = name.ends_with(".json")
                                   ? AddJson(storage, path, opened.index)
                                   : AddTorchFile(storage, path, opened.index);
    if (added.ok()) continue;
    if (!IsAboutContent(added)) return added;
    opened.remarks.push_back(fmt::format("its {} is left out: {}", name, MessageOf(added)));
  }
  return absl::OkStatus();
}

}  // namespace ckptd::dcp
