#include "common/source/format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

absl::StatusOr<Listing> ListSource(const Storage& storage, const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(const Storage::Found found, storage.Stat(source));
  Listing out;
  out.source = source;
  out.is_folder = found.is_folder;
  if (!out.is_folder) return out;
  CKPTD_RETURN_IF_ERROR(storage.List(source, [&out](std::string_view name) {
    out.names.emplace_back(name);
    return out.names.size() <= kMaxFolderEntries;
  }));
  if (out.names.size() > kMaxFolderEntries) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("opening {}: more than {} entries in this folder; name the "
                                 "index or the file to load",
                                 source, kMaxFolderEntries),
                     {{"file", source}});
  }
  std::sort(out.names.begin(), out.names.end());
  return out;
}

absl::Status CheckPart(const Listing& listing, std::initializer_list<std::string_view> parts) {
  const bool has = listing.part.empty() ||
                   std::find(parts.begin(), parts.end(), listing.part) != parts.end();
  return has ? absl::OkStatus() : NoSuchPart(listing, parts);
}

absl::Status NoSuchPart(const Listing& listing, std::span<const std::string_view> parts) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: it has no part \"{}\"; name one that it has (#{}), or "
                               "none for its default",
                               listing.source, listing.part, fmt::join(parts, ", #")),
                   {{"file", listing.source}});
}

}  // namespace ckptd
