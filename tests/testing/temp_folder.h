// A folder for one test, with what tests put into it.
#ifndef CKPTD_TESTS_TESTING_TEMP_FOLDER_H_
#define CKPTD_TESTS_TESTING_TEMP_FOLDER_H_

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace ckptd {

// In TMPDIR, or in another folder. Removed with all it holds on destruction, but by no child of the process that made it.
class TempFolder {
 public:
  TempFolder() : TempFolder(std::filesystem::temp_directory_path()) {}
  explicit TempFolder(const std::filesystem::path& parent) {
    std::string pattern = (parent / "ckptd-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    if (getpid() != owner_) return;
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
  const pid_t owner_ = getpid();
  std::string path_;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_TEMP_FOLDER_H_
