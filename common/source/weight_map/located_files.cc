#include "common/source/weight_map/located_files.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

// "/a/b.json" -> "/a"; "/b.json" -> "".
std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

absl::Status CheckFileCount(const std::string& source, size_t count) {
  if (count <= kMaxSourceFiles) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: it has {} files, at most {} are read; merge them into "
                               "larger ones",
                               source, count, kMaxSourceFiles),
                   {{"file", source}});
}

LocatedFiles LocateOneFile(const std::string& path) {
  LocatedFiles out;
  out.folder = FolderOf(path);
  out.names = {path.substr(out.folder.size() + 1)};
  out.alone = true;
  return out;
}

absl::StatusOr<LocatedFiles> LocateByIndex(const Storage& storage, const std::string& path,
                                           std::string_view extension) {
  LocatedFiles out;
  out.folder = FolderOf(path);
  absl::StatusOr<TextObject> read = ReadText(storage, path, kMaxIndexJsonBytes);
  if (!read.ok()) return WithFact(read.status(), "file", path);
  absl::StatusOr<IndexJson> index = ParseIndexJson(read->text, extension);
  const bool is_called_so = path.find(".index.", out.folder.size()) != std::string::npos;
  if (!is_called_so && FactsOf(index.status())["error"] == kNoWeightMap) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("opening {}: it is no index; name its folder", path),
                     {{"file", path}});
  }
  if (!index.ok()) {
    return WithFact(WithContext(index.status(), "reading index " + path), "file", path);
  }
  std::set<std::string> names;
  for (const auto& entry : index->weight_map) names.insert(entry.second);
  CKPTD_RETURN_IF_ERROR(CheckFileCount(path, names.size()));
  out.names.assign(names.begin(), names.end());
  out.index_path = path;
  for (const std::string& remark : index->remarks) {
    out.remarks.push_back(fmt::format("index {}: {}", path, remark));
  }
  out.index = *std::move(index);
  // The identity of the file that was open: a swap is noticed, whatever was read.
  out.index_file = std::move(read->identity);
  return out;
}

}  // namespace ckptd
