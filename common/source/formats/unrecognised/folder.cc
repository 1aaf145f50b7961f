#include "common/source/formats/unrecognised/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/text.h"

namespace ckptd::unrecognised {
namespace {

// How names of other programs' files end, and whose they are.
constexpr auto kForeign = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"saved_model.pb", "TensorFlow"},
    {".h5", "Keras and TensorFlow (HDF5)"},
    {".keras", "Keras"},
    {".msgpack", "Flax"},
    {".onnx", "ONNX"},
    {".npz", "NumPy"},
    {".npy", "NumPy"},
    {".tflite", "TensorFlow Lite"},
    {".index", "TensorFlow"},
    {"_CHECKPOINT_METADATA", "Orbax (JAX)"},
    {".nemo", "NeMo (an archive: unpack it)"},
    {".zarray", "zarr"},
    {".zgroup", "zarr"},
    {"zarr.json", "zarr"},
});

constexpr auto kOfCheckpoints =
    std::to_array<std::string_view>({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".distcp",
                                     ".gguf", ".metadata", ".index.json"});

absl::Status Refused(absl::StatusCode code, std::string_view reason, const std::string& folder,
                     std::string_view why) {
  return MakeError(code, reason, fmt::format("opening {}: {}", folder, why), {{"file", folder}});
}

bool Has(const Listing& folder, std::string_view name) {
  return std::binary_search(folder.names.begin(), folder.names.end(), name);
}

bool EndsAsCheckpoint(std::string_view name) {
  return std::any_of(kOfCheckpoints.begin(), kOfCheckpoints.end(),
                     [name](std::string_view end) { return name.ends_with(end); });
}

// The first folders below that hold what looks like a checkpoint, by name.
std::vector<std::string> FoldersBelow(const Storage& storage, const Listing& folder) {
  constexpr size_t kMostLookedAt = 64;
  constexpr size_t kMostNamed = 3;
  std::vector<std::string> found;
  for (size_t i = 0; i < std::min(folder.names.size(), kMostLookedAt); ++i) {
    const std::string& name = folder.names[i];
    const absl::StatusOr<Listing> below = ListSource(storage, folder.source + "/" + name);
    const bool holds = below.ok() && below->is_folder &&
                       std::any_of(below->names.begin(), below->names.end(), EndsAsCheckpoint);
    if (holds) found.push_back(name);
    if (found.size() == kMostNamed) break;
  }
  return found;
}

// A distributed checkpoint of torch has its .metadata written last.
absl::Status LacksMetadata(const Listing& folder) {
  const bool was_begun = Has(folder, ".metadata.tmp");
  return FilesMissing(folder.source, {".metadata"},
                      was_begun ? "the save did not finish, as its .metadata.tmp is still there: "
                                  "load an earlier checkpoint"
                                : "the save did not finish, or another node has the file, as only "
                                  "rank 0 writes it: copy the files of all nodes into this folder");
}

absl::Status WhyNothing(const Storage& storage, const Listing& folder) {
  std::string advice = "name a file of weights, an index.json or the folder that holds them";
  const std::vector<std::string> below = FoldersBelow(storage, folder);
  if (Has(folder, "snapshots")) {
    advice =
        "it looks like a model's folder in a Hugging Face cache: name the revision inside, "
        "snapshots/<revision>";
  } else if (!below.empty()) {
    advice = fmt::format("name the one below that holds them: {}",
                         fmt::join(below.begin(), below.end(), ", "));
  }
  const std::string holds =
      folder.names.empty() ? "is empty" : "holds no checkpoint, but " + Listed(folder.names);
  return Refused(absl::StatusCode::kNotFound, reason::kSourceNotFound, folder.source,
                 fmt::format("this folder {}; {}", holds, advice));
}

}  // namespace

absl::Status WhyNoCheckpoint(const Storage& storage, const Listing& folder) {
  const auto ends_with = [&folder](std::string_view end) {
    return std::find_if(folder.names.begin(), folder.names.end(),
                        [end](const std::string& name) { return name.ends_with(end); });
  };
  if (ends_with(".distcp") != folder.names.end()) return LacksMetadata(folder);
  for (const auto& [end, program] : kForeign) {
    const auto name = ends_with(end);
    if (name == folder.names.end()) continue;
    return Refused(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported, folder.source,
                   fmt::format("it holds {}, a file of {}, and no checkpoint of a format that is "
                               "read; save the model by PyTorch or as safetensors",
                               Quoted(*name), program));
  }
  return WhyNothing(storage, folder);
}

}  // namespace ckptd::unrecognised
