#include "common/source/open.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/hub_cache.h"
#include "common/source/odd_tensors.h"
#include "common/source/path_text.h"
#include "common/source/registry.h"
#include "common/source/table_memory.h"

namespace ckptd {
namespace {

absl::Status Changed(const std::string& path, std::string_view how) {
  return MakeError(absl::StatusCode::kAborted, reason::kSourceChanged,
                   fmt::format("checking {}: {} since its header was read; let whoever writes it "
                               "finish, then load again",
                               path, how),
                   {{"file", path}});
}

// As AbsolutePath, with nothing expanded.
absl::StatusOr<std::string> MakeAbsolute(const std::string& source) {
  const SourceName asked = SplitPart(source);
  CKPTD_ASSIGN_OR_RETURN(const std::string name, PathOfName(asked.path));
  std::string path = PathOfText(name == asked.path ? source : JoinPart(name, asked.part));
  if (path.empty() || path.find('\0') != std::string::npos) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     "opening the checkpoint: its path is empty or contains NUL; name a "
                     "file of weights, an index.json or a folder that holds them");
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

// A source, and what reads it.
struct Named {
  std::shared_ptr<const Storage> storage;
  Listing listing;
  const CheckpointFormat& format;
};

// The source that lies at `path`, or else the one whose part it names.
absl::StatusOr<Listing> ListNamed(const Storage& storage, const std::string& path) {
  absl::StatusOr<Listing> whole = ListSource(storage, path);
  if (whole.status().code() != absl::StatusCode::kNotFound) return whole;
  SourceName name = SplitPart(path);
  if (name.part.empty()) return whole;
  absl::StatusOr<Listing> listing = ListSource(storage, name.path);
  if (listing.status().code() == absl::StatusCode::kNotFound) return whole;
  if (listing.ok()) listing->part = std::move(name.part);
  return listing;
}

absl::StatusOr<Named> NamedBy(const std::string& source, const SourceAccess& access) {
  CKPTD_ASSIGN_OR_RETURN(const std::string path, MakeAbsolute(source));
  std::shared_ptr<const Storage> storage = StorageOf(path, access);
  CKPTD_ASSIGN_OR_RETURN(Listing listing, ListNamed(*storage, path));
  const CheckpointFormat& format = FormatOf(*storage, listing);
  return Named{CountTables(std::move(storage)), std::move(listing), format};
}

// A folder still means the same index, or without one the same files.
absl::Status CheckSameNames(const CheckpointIndex& index, const SourceAccess& access) {
  const absl::StatusOr<Named> named = NamedBy(index.source, access);
  if (named.ok()) {
    const auto same = named->format.StillMeans(*named->storage, named->listing, index.files);
    if (same.ok() && *same) return absl::OkStatus();
  }
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
  if (exists) return MakeAbsolute(source);
  const SourceName name = SplitPart(Expand(source));
  return MakeAbsolute(JoinPart(name.path, name.part));
}

absl::Status Recognise(const std::string& source, const SourceAccess& access) {
  CKPTD_ASSIGN_OR_RETURN(const Named named, NamedBy(source, access));
  return named.format.Check(*named.storage, named.listing);
}

absl::StatusOr<CheckpointIndex> OpenCheckpoint(const std::string& source,
                                               const SourceAccess& access) {
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenWithRemarks(source, access));
  return std::move(opened.index);
}

absl::StatusOr<OpenedCheckpoint> OpenWithRemarks(const std::string& source,
                                                 const SourceAccess& access) {
  CKPTD_ASSIGN_OR_RETURN(const Named named, NamedBy(source, access));
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened,
                         named.format.ReadIndex(*named.storage, named.listing));
  opened.index.source = JoinPart(named.listing.source, named.listing.part);
  opened.index.part = named.listing.part;
  opened.index.format = named.format.name();
  for (std::string& remark : RemarksOnOddTensors(opened.index)) {
    opened.remarks.push_back(std::move(remark));
  }
  return opened;
}

absl::StatusOr<OpenedCheckpoint> OpenSettledCheckpoint(const std::string& source,
                                                       const SourceAccess& access) {
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenWithRemarks(source, access));
  const auto unsettled = UnsettledFor(opened.index, std::chrono::system_clock::now());
  if (unsettled.count() == 0) return opened;
  std::this_thread::sleep_for(unsettled);
  return OpenWithRemarks(source, access);
}

std::chrono::nanoseconds UnsettledFor(const CheckpointIndex& index,
                                      std::chrono::system_clock::time_point now) {
  std::chrono::nanoseconds longest(0);
  for (const SourceFile& file : index.files) {
    longest = std::max(longest, StorageOf(file.path)->UnsettledFor(file, now));
  }
  return longest;
}

absl::Status CheckUnchanged(const CheckpointIndex& index, const SourceAccess& access) {
  for (const SourceFile& file : index.files) {
    const std::shared_ptr<const Storage> storage = StorageOf(file.path, access);
    const absl::StatusOr<Storage::Found> found = storage->Stat(file.path);
    if (!found.ok()) {
      if (found.status().code() != absl::StatusCode::kNotFound) return found.status();
      return Changed(file.path, "it was removed");
    }
    const std::string_view how = storage->WhatChanged(file, found->identity);
    if (!how.empty()) return Changed(file.path, how);
  }
  return CheckSameNames(index, access);
}

}  // namespace ckptd
