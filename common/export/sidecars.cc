#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "common/export/export.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

// Larger ones are no configuration.
constexpr uintmax_t kMostBytes = uintmax_t{256} << 20;

bool IsAdapterFile(const fs::path& path) {
  return path.filename() == "adapter_model.safetensors" || path.filename() == "adapter_model.bin";
}

bool IsSidecar(const fs::directory_entry& entry) {
  static const std::set<std::string_view> kSuffixes = {".json",     ".txt", ".model", ".py",
                                                       ".tiktoken", ".md",  ".jinja", ".jsonl",
                                                       ".yaml",     ".yml", ".spm",   ".vocab"};
  static const std::set<std::string_view> kNames = {"LICENSE", "NOTICE", "USE_POLICY"};
  // Files that belong to a training, or to the files that are written anew.
  static const std::set<std::string_view> kOthers = {"trainer_state.json", "metadata.json"};
  const std::string name = entry.path().filename().string();
  if (name.starts_with(".") || name.ends_with(".index.json") || kOthers.count(name) != 0) {
    return false;
  }
  std::error_code error;
  if (!entry.is_regular_file(error) || entry.file_size(error) > kMostBytes || error) return false;
  return kNames.count(name) != 0 || kSuffixes.count(entry.path().extension().string()) != 0;
}

}  // namespace

bool IsAdapter(const CheckpointIndex& index) {
  return index.files.size() == 1 && IsAdapterFile(index.files.front().path);
}

std::vector<std::string> FindSidecars(const std::string& source) {
  std::vector<std::string> found;
  std::error_code error;
  if (!fs::is_directory(source, error)) {
    const fs::path config = fs::path(source).parent_path() / "adapter_config.json";
    if (IsAdapterFile(source) && fs::is_regular_file(config, error)) found = {config.string()};
    return found;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(source, error)) {
    if (IsSidecar(entry)) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace ckptd
