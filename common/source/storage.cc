#include "common/source/storage.h"

#include <fmt/format.h>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

absl::Status Changed(const std::string& path, std::string_view how) {
  return MakeError(absl::StatusCode::kAborted, reason::kSourceChanged,
                   fmt::format("reading {}: {}; let the writer finish and load again", path, how),
                   {{"file", path}});
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ReadableObject>> OpenIndexed(const Storage& storage,
                                                                  const SourceFile& indexed) {
  auto object = storage.Open(indexed.path);
  if (ReasonOf(object.status()) == reason::kSourceInvalid) {
    return Changed(indexed.path, "it is no longer a regular file");
  }
  CKPTD_RETURN_IF_ERROR(object.status());
  const SourceFile& found = (*object)->identity();
  if (found.bytes < indexed.bytes) {
    return Changed(indexed.path, fmt::format("it has {} bytes, its header was read when it had {}",
                                             found.bytes, indexed.bytes));
  }
  if (!indexed.object.empty() && !IsSameObject(found, indexed)) {
    return Changed(indexed.path, "another file took its place after its header was read");
  }
  return object;
}

absl::StatusOr<TextObject> ReadText(const Storage& storage, const std::string& path,
                                    size_t limit) {
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadableObject> object, storage.Open(path));
  if (object->size() > limit) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("reading {}: {} bytes, more than the {} allowed here", path,
                                 object->size(), limit),
                     {{"file", path}});
  }
  TextObject out{object->identity(), std::string(static_cast<size_t>(object->size()), '\0')};
  CKPTD_RETURN_IF_ERROR(object->ReadAt(0, std::as_writable_bytes(std::span(out.text))));
  out.identity.header_hash = Xxh3(out.text);
  return out;
}

}  // namespace ckptd
