// A folder for one test, with what tests put into it.
#ifndef CKPTD_TESTS_UNIT_COMMON_CHECKPOINT_TEMP_FOLDER_H_
#define CKPTD_TESTS_UNIT_COMMON_CHECKPOINT_TEMP_FOLDER_H_

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace ckptd {

// Removed with all it holds on destruction.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ckptd-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  std::string Write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path file = *this / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file.string();
  }

 private:
  std::string path_;
};

// A whole safetensors file: the length, `json` as it is, `data`.
inline std::string FileBytes(std::string_view json, std::string_view data) {
  std::string out;
  for (uint64_t rest = json.size(), i = 0; i < 8; ++i, rest >>= 8) {
    out.push_back(static_cast<char>(rest & 0xff));
  }
  return out.append(json).append(data);
}

// A file with one U8 tensor of one byte.
inline std::string OneTensor(const std::string& name, const std::string& metadata = {}) {
  const std::string extra = metadata.empty() ? "" : "\"__metadata__\":" + metadata + ",";
  return FileBytes(
      "{" + extra + "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
      "x");
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_UNIT_COMMON_CHECKPOINT_TEMP_FOLDER_H_
