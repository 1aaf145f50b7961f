#include "common/source/zip/object_part.h"

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd::zip {
namespace {

absl::Status ErrorOf(absl::StatusCode code, const char* reason, const ObjectPart& part,
                     std::string_view why) {
  const std::string& path = part.object->path();
  return MakeError(code, reason, fmt::format("reading {}: {}", path, why), {{"file", path}});
}

}  // namespace

absl::Status ObjectPart::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes || out.size() > bytes - offset) {
    return Invalid("it ends before what it says that it holds; finish the download or copy");
  }
  const absl::Status status = object->ReadAt(begin + offset, out);
  return status.ok() ? status : WithFact(status, "file", object->path());
}

absl::Status ObjectPart::Invalid(std::string_view why) const {
  return ErrorOf(absl::StatusCode::kDataLoss, reason::kSourceInvalid, *this, why);
}

absl::Status ObjectPart::AboveLimit(std::string_view why) const {
  return ErrorOf(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid, *this, why);
}

absl::Status ObjectPart::Unsupported(std::string_view why) const {
  return ErrorOf(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported, *this, why);
}

}  // namespace ckptd::zip
