#include "common/source/open.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/safetensors/file.h"
#include "common/source/formats/safetensors/folder.h"
#include "common/source/formats/safetensors/locate.h"
#include "common/source/formats/safetensors/merge.h"
#include "common/source/hub_cache.h"
#include "common/source/path_text.h"

namespace ckptd {
namespace {

// How long two writes may have the same time. Kernels stamp files by their tick, 10 ms at the
// most; some file systems by whole seconds, or two.
constexpr std::chrono::nanoseconds kTick = std::chrono::milliseconds(20);
constexpr std::chrono::nanoseconds kCoarseTick = std::chrono::milliseconds(2'100);
constexpr std::chrono::nanoseconds kWholeSecond = std::chrono::seconds(1);

// Why a file of the source could not be read.
absl::Status InContext(const absl::Status& status, const LocatedSource& located,
                       const std::string& path) {
  // Its name counts only where its bytes are not safetensors.
  if (FactsOf(status).contains("error")) CKPTD_RETURN_IF_ERROR(CheckExtension(path));
  if (!located.index.has_value() || status.code() != absl::StatusCode::kNotFound) return status;
  return WithContext(status, fmt::format("reading a file that index {} names (finish the download, "
                                         "or correct the index)",
                                         located.index_path));
}

absl::StatusOr<SafetensorsFile> ReadFile(const LocatedSource& located, const std::string& name) {
  const std::string path = located.folder + "/" + name;
  absl::StatusOr<SafetensorsFile> file = ReadSafetensorsFile(path);
  if (!file.ok()) return InContext(file.status(), located, path);
  return file;
}

std::string_view WhatChanged(const SourceFile& was, const SourceFile& is) {
  if (was.device != is.device || was.inode != is.inode) return "it was replaced by another file";
  if (was.bytes != is.bytes) return "its size changed";
  if (was.mtime_ns != is.mtime_ns) return "it was written to";
  if (was.ctime_ns != is.ctime_ns) {
    return "it was written to and its time set back, or its name, links, owner or mode changed";
  }
  return {};
}

absl::Status Changed(const std::string& path, std::string_view how) {
  return MakeError(absl::StatusCode::kAborted, reason::kSourceChanged,
                   fmt::format("checking {}: {} since its header was read; let whoever writes it "
                               "finish, then load again",
                               path, how),
                   {{"file", path}});
}

// As AbsolutePath, with nothing expanded.
absl::StatusOr<std::string> MakeAbsolute(const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(const std::string name, PathOfName(source));
  std::string path = PathOfText(name);
  if (path.empty() || path.find('\0') != std::string::npos) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     "opening the checkpoint: its path is empty or contains NUL; name a "
                     ".safetensors file, an index.json or a folder that holds them");
  }
  if (path[0] != '/') {
    std::error_code error;
    const std::filesystem::path here = std::filesystem::current_path(error);
    if (error) return ErrnoStatus(error.value(), "finding the working directory for " + source);
    path = (here / path).string();
  }
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// A folder still means the same index, or without one the same files.
absl::Status CheckSameNames(const CheckpointIndex& index) {
  CKPTD_ASSIGN_OR_RETURN(const std::string source, MakeAbsolute(index.source));
  const absl::StatusOr<bool> same = FindsStill(source, index.files);
  if (same.ok() && *same) return absl::OkStatus();
  return Changed(index.source, "other files of that folder count now");
}

// `text` with the variable that begins at `at` (a "$") replaced; sets `at` behind it. One that is
// not set stays.
void ExpandVariable(std::string& text, size_t& at) {
  const bool braces = text.compare(at, 2, "${") == 0;
  const size_t begin = at + (braces ? 2 : 1);
  size_t end = begin;
  while (end < text.size() &&
         (text[end] == '_' || std::isalnum(static_cast<unsigned char>(text[end])) != 0)) {
    ++end;
  }
  const char* const value = std::getenv(text.substr(begin, end - begin).c_str());
  const bool closed = !braces || (end < text.size() && text[end] == '}');
  if (end == begin || value == nullptr || !closed) {
    ++at;
    return;
  }
  text.replace(at, end + (braces ? 1 : 0) - at, value);
  at += std::string_view(value).size();
}

// "~" and variables of this process, as a shell expands them.
std::string Expand(std::string text) {
  const char* const home = std::getenv("HOME");
  if (home != nullptr && (text == "~" || text.starts_with("~/"))) text.replace(0, 1, home);
  for (size_t at = text.find('$'); at != std::string::npos; at = text.find('$', at)) {
    ExpandVariable(text, at);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> AbsolutePath(const std::string& source) {
  std::error_code ignored;
  const bool exists = std::filesystem::exists(std::filesystem::symlink_status(source, ignored));
  return MakeAbsolute(exists ? source : Expand(source));
}

absl::Status Recognise(const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(const std::string path, MakeAbsolute(source));
  CKPTD_ASSIGN_OR_RETURN(const LocatedSource located, LocateFiles(path));
  if (located.index.has_value() || located.names.size() != 1) return absl::OkStatus();
  return ReadFile(located, located.names[0]).status();
}

absl::StatusOr<CheckpointIndex> OpenCheckpoint(const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenWithRemarks(source));
  return std::move(opened.index);
}

absl::StatusOr<OpenedCheckpoint> OpenWithRemarks(const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(const std::string path, MakeAbsolute(source));
  CKPTD_ASSIGN_OR_RETURN(const LocatedSource located, LocateFiles(path));
  IndexMerger merger(located);
  for (const std::string& name : located.names) {
    CKPTD_ASSIGN_OR_RETURN(SafetensorsFile file, ReadFile(located, name));
    CKPTD_RETURN_IF_ERROR(merger.Add(std::move(file)));
  }
  OpenedCheckpoint out;
  CKPTD_ASSIGN_OR_RETURN(out.index, merger.Finish());
  out.index.source = path;
  // The index decides which bytes a name means: it is part of what was loaded.
  if (located.index_file.has_value()) out.index.files.push_back(*located.index_file);
  out.remarks = located.remarks;
  out.remarks.insert(out.remarks.end(), merger.remarks().begin(), merger.remarks().end());
  return out;
}

absl::StatusOr<OpenedCheckpoint> OpenSettledCheckpoint(const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenWithRemarks(source));
  const auto unsettled = UnsettledFor(opened.index, std::chrono::system_clock::now());
  if (unsettled.count() == 0) return opened;
  std::this_thread::sleep_for(unsettled);
  return OpenWithRemarks(source);
}

std::chrono::nanoseconds UnsettledFor(const CheckpointIndex& index,
                                      std::chrono::system_clock::time_point now) {
  const std::chrono::nanoseconds time = now.time_since_epoch();
  std::chrono::nanoseconds longest(0);
  for (const SourceFile& file : index.files) {
    const auto tick = file.ctime_ns % kWholeSecond.count() == 0 ? kCoarseTick : kTick;
    for (const int64_t stamp : {file.mtime_ns, file.ctime_ns}) {
      const std::chrono::nanoseconds written(stamp);
      // One of the future was set, or is of another clock, which nobody can wait for.
      if (written <= time) longest = std::max(longest, written + tick - time);
    }
  }
  return longest;
}

absl::Status CheckUnchanged(const CheckpointIndex& index) {
  for (const SourceFile& file : index.files) {
    const absl::StatusOr<struct stat> info = StatSource(file.path);
    if (!info.ok()) {
      if (info.status().code() != absl::StatusCode::kNotFound) return info.status();
      return Changed(file.path, "it was removed");
    }
    const std::string_view how = WhatChanged(file, IdentityOf(file.path, *info));
    if (!how.empty()) return Changed(file.path, how);
  }
  return CheckSameNames(index);
}

}  // namespace ckptd
