#include "common/checkpoint/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/digest.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/checkpoint/folder.h"
#include "common/checkpoint/safetensors_file.h"

namespace ckptd {
namespace {

// "/a/b.json" -> "/a"; "/b.json" -> "".
std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

absl::Status TooManyFiles(const std::string& source, size_t count) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: it has {} files, at most {} are read; merge them into "
                               "larger ones",
                               source, count, kMaxSourceFiles),
                   {{"file", source}});
}

absl::StatusOr<LocatedSource> LocateByIndex(const std::string& path) {
  CKPTD_RETURN_IF_ERROR(CheckRegular(path));
  // Before it is read: a later swap is then noticed, whatever was read.
  CKPTD_ASSIGN_OR_RETURN(const struct stat info, StatSource(path));
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxIndexJsonBytes);
  if (!text.ok()) return WithFact(text.status(), "file", path);
  absl::StatusOr<IndexJson> index = ParseIndexJson(*text);
  if (!index.ok()) {
    return WithFact(WithContext(index.status(), "reading index " + path), "file", path);
  }
  std::set<std::string> names;
  for (const auto& entry : index->weight_map) names.insert(entry.second);
  if (names.size() > kMaxSourceFiles) return TooManyFiles(path, names.size());
  LocatedSource out;
  out.folder = FolderOf(path);
  out.names.assign(names.begin(), names.end());
  out.index_path = path;
  out.index = *std::move(index);
  out.index_file = IdentityOf(path, info);
  out.index_file->header_hash = Xxh3(*text);
  return out;
}

// The path of the index that counts; empty where there is none.
absl::StatusOr<std::string> ChooseIndex(const std::string& folder,
                                        const std::vector<std::string>& indices) {
  constexpr char kUsualIndex[] = "model.safetensors.index.json";
  if (indices.empty()) return std::string();
  if (std::binary_search(indices.begin(), indices.end(), kUsualIndex)) {
    return folder + "/" + kUsualIndex;
  }
  if (indices.size() == 1) return folder + "/" + indices[0];
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: it holds {} indices ({}, {} ...), each another "
                               "checkpoint; name the index to load",
                               folder, indices.size(), indices[0], indices[1]),
                   {{"file", folder}});
}

absl::StatusOr<LocatedSource> LocateInFolder(const std::string& folder) {
  CKPTD_ASSIGN_OR_RETURN(FolderContents contents, ListFolder(folder));
  CKPTD_ASSIGN_OR_RETURN(const std::string index, ChooseIndex(folder, contents.indices));
  if (!index.empty()) return LocateByIndex(index);
  if (contents.safetensors.empty()) return NothingToLoad(folder, contents);
  if (contents.safetensors.size() > kMaxSourceFiles) {
    return TooManyFiles(folder, contents.safetensors.size());
  }
  CKPTD_RETURN_IF_ERROR(CheckSeriesComplete(folder, contents.safetensors));
  LocatedSource out;
  out.folder = folder;
  out.names = std::move(contents.safetensors);
  return out;
}

}  // namespace

absl::StatusOr<std::string> FindIndex(const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(const struct stat info, StatSource(source));
  if (!S_ISDIR(info.st_mode)) return source.ends_with(".json") ? source : std::string();
  CKPTD_ASSIGN_OR_RETURN(const FolderContents contents, ListFolder(source));
  return ChooseIndex(source, contents.indices);
}

absl::StatusOr<LocatedSource> LocateFiles(const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(const struct stat info, StatSource(source));
  if (S_ISDIR(info.st_mode)) return LocateInFolder(source);
  if (source.ends_with(".json")) {
    CKPTD_RETURN_IF_ERROR(CheckExtension(source));
    return LocateByIndex(source);
  }
  LocatedSource out;
  out.folder = FolderOf(source);
  out.names = {source.substr(out.folder.size() + 1)};
  return out;
}

}  // namespace ckptd
