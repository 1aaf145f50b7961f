#include "common/source/formats/safetensors/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/digest.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/storage/process_memory.h"

namespace ckptd {
namespace {

// One read fetches the length and most headers whole.
constexpr uint64_t kFirstReadBytes = 64 * 1024;

absl::Status Invalid(const std::string& path, std::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("reading {}: {}", path, why), {{"file", path}});
}

absl::Status NotRegular(const std::string& path, mode_t mode) {
  std::string_view kind = "a device";
  if (S_ISDIR(mode)) kind = "a directory";
  if (S_ISFIFO(mode)) kind = "a pipe (FIFO)";
  if (S_ISSOCK(mode)) kind = "a socket";
  return Invalid(path, fmt::format("it is {}, not a regular file; name a .safetensors file, an "
                                   "index.json or a directory that holds them",
                                   kind));
}

absl::Status StatError(const std::string& path, int error) {
  if (error == ENAMETOOLONG || error == ELOOP || error == EINVAL) {
    return Invalid(path.substr(0, 4096), error == ELOOP
                                             ? "its links lead in a circle; name the file itself"
                                             : "no path can be like that; check it");
  }
  std::error_code ignored;
  const auto link = std::filesystem::read_symlink(path, ignored);
  if (error == ENOENT && !ignored) {
    return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                     fmt::format("reading {}: it is a link to {}, which does not exist here; "
                                 "download or mount that too",
                                 path, link.string()),
                     {{"file", path}});
  }
  std::string_view advice = "";
  if (error == ENOENT || error == ENOTDIR) {
    advice = "; check the path (a daemon sees its own mounts and working directory)";
    if (path.find_first_of("*?[") != std::string::npos) {
      advice = "; patterns are not expanded: name the folder that holds the files, or one of them";
    } else if (path.find('$') != std::string::npos) {
      advice = "; a variable that is not set where the path is named stays in it as it is";
    }
  } else if (error == EACCES || error == EPERM) {
    advice = "; let that user enter the folders above";
  }
  const absl::Status status = ErrnoStatus(error, "reading " + path);
  return MakeError(status.code(), ReasonOf(status), MessageOf(status) + std::string(advice),
                   {{"file", path}});
}

// The JSON of the header that is at `at` of an open file, `file_bytes` before its end.
absl::StatusOr<std::string> ReadHeaderBytes(int fd, const std::string& path, uint64_t at,
                                            uint64_t file_bytes) {
  std::string bytes(std::min(file_bytes, kFirstReadBytes), '\0');
  CKPTD_RETURN_IF_ERROR(PreadFull(fd, at, std::as_writable_bytes(std::span(bytes)), path));
  CKPTD_ASSIGN_OR_RETURN(const uint64_t length,
                         ParseHeaderLength(std::as_bytes(std::span(bytes)), file_bytes));
  const size_t have = bytes.size();
  bytes.resize(kHeaderLengthBytes + length);
  if (bytes.size() > have) {
    const std::span<char> rest = std::span(bytes).subspan(have);
    CKPTD_RETURN_IF_ERROR(PreadFull(fd, at + have, std::as_writable_bytes(rest), path));
  }
  bytes.erase(0, kHeaderLengthBytes);
  return bytes;
}

absl::StatusOr<SafetensorsFile> ReadOpenFile(const OpenedFile& file, const std::string& path) {
  const int fd = file.fd.get();
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return StatError(path, errno);
  if (!S_ISREG(info.st_mode)) return NotRegular(path, info.st_mode);
  SafetensorsFile out;
  out.file = IdentityOf(path, info);
  const uint64_t at = file.memory.has_value() ? file.memory->header_at() : 0;
  const uint64_t bytes = out.file.bytes - at;
  CKPTD_ASSIGN_OR_RETURN(const std::string json, ReadHeaderBytes(fd, path, at, bytes));
  out.file.header_hash = Xxh3(json);
  out.data_start = at + kHeaderLengthBytes + json.size();
  CKPTD_ASSIGN_OR_RETURN(out.header, ParseSafetensorsHeader(json, bytes));
  if (file.memory.has_value() && file.memory->data_at() != out.data_start) {
    return HeaderError("MetadataIncompleteBuffer",
                       "the memory that it offers is not as long as its tensors");
  }
  return out;
}

int64_t Nanoseconds(const struct timespec& time) {
  constexpr int64_t kNanosPerSecond = 1'000'000'000;
  return time.tv_sec * kNanosPerSecond + time.tv_nsec;
}

}  // namespace

SourceFile IdentityOf(const std::string& path, const struct stat& info) {
  SourceFile file;
  file.path = path;
  file.bytes = static_cast<uint64_t>(info.st_size);
  file.device = info.st_dev;
  file.inode = info.st_ino;
  file.mtime_ns = Nanoseconds(info.st_mtim);
  file.ctime_ns = Nanoseconds(info.st_ctim);
  return file;
}

absl::StatusOr<struct stat> StatSource(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return StatError(path, errno);
  return info;
}

absl::Status CheckRegular(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const struct stat info, StatSource(path));
  return S_ISREG(info.st_mode) ? absl::OkStatus() : NotRegular(path, info.st_mode);
}

absl::StatusOr<SafetensorsFile> ReadSafetensorsFile(const std::string& path) {
  CKPTD_RETURN_IF_ERROR(CheckRegular(path));
  const absl::StatusOr<OpenedFile> file = OpenSourceFile(path);
  if (!file.ok()) return WithFact(file.status(), "file", path);
  absl::StatusOr<SafetensorsFile> out = ReadOpenFile(*file, path);
  if (out.ok()) return out;
  absl::Status status = out.status();
  if (FactsOf(status).count("error") != 0) {
    status = WithContext(status, "reading the header of " + path);
  }
  return WithFact(status, "file", path);
}

}  // namespace ckptd
