#include "common/source/torch/file.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/source/torch/read_file.h"
#include "common/source/zip/object_part.h"

namespace ckptd::torch {
namespace {

constexpr uint64_t kHeadBytes = 512;  // of a tar; the marks of other forms come earlier
constexpr uint64_t kNameWithin = 64 << 10;
constexpr std::string_view kZip("PK\x03\x04");

std::string TextAt(const zip::ObjectPart& part, uint64_t begin, uint64_t most) {
  std::string out(static_cast<size_t>(std::min(part.bytes - begin, most)), '\0');
  if (!part.ReadAt(begin, std::as_writable_bytes(std::span(out))).ok()) out.clear();
  return out;
}

std::string HeadOf(const zip::ObjectPart& part) { return TextAt(part, 0, kHeadBytes); }

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// torch before 0.2 wrote a tar of "sys_info", "pickle", "tensors" and "storages".
bool BeginsAsTar(std::string_view head) {
  constexpr size_t kMagicAt = 257;
  if (head.size() < 512 || head.substr(kMagicAt, 5) != "ustar") return false;
  const std::string_view name = head.substr(0, head.find('\0'));
  return name == "sys_info" || name == "pickle" || name == "tensors" || name == "storages";
}

bool BeginsAsPickle(std::string_view head) {
  return head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

zip::ObjectPart WholeOf(std::shared_ptr<const ReadableObject> object) {
  const uint64_t begin = object->begin();
  const uint64_t bytes = object->size() - std::min(begin, object->size());
  return {std::move(object), begin, bytes};
}

absl::StatusOr<File> ReadPart(const zip::ObjectPart& part) {
  const std::string head = HeadOf(part);
  if (BeginsAsLegacy(BytesOf(head))) return ReadLegacy(part);
  if (BeginsAsTar(head)) {
    return part.Unsupported("it is a tar file of torch before 0.2, which is not read; load it with "
                            "a torch of then, and save it again");
  }
  if (BeginsAsPickle(head)) {
    return part.Unsupported("it is a pickle of something else than torch.save; name the checkpoint "
                            "itself, or save it by torch.save");
  }
  return ReadZip(part);
}

}  // namespace

bool IsTorchFile(const ReadableObject& object) {
  // Not to be owned by what looks at it.
  const zip::ObjectPart part =
      WholeOf(std::shared_ptr<const ReadableObject>(std::shared_ptr<void>(), &object));
  // Most files are others, so few bytes have to do for them.
  const std::string head = HeadOf(part);
  if (BeginsAsLegacy(BytesOf(head)) || BeginsAsTar(head)) return true;
  if (!head.starts_with(kZip)) return false;
  constexpr std::string_view kPickle = "/data.pkl";
  const uint64_t tail = part.bytes - std::min(part.bytes, kNameWithin);
  return TextAt(part, 0, kNameWithin).find(kPickle) != std::string::npos ||
         TextAt(part, tail, kNameWithin).find(kPickle) != std::string::npos;
}

absl::StatusOr<File> ReadFile(const Storage& storage, const std::string& path) {
  absl::StatusOr<std::shared_ptr<const ReadableObject>> object = storage.Open(path);
  if (!object.ok()) return WithFact(object.status(), "file", path);
  return ReadPart(WholeOf(*std::move(object)));
}

absl::StatusOr<File> ReadFile(std::shared_ptr<const ReadableObject> object, uint64_t begin,
                              uint64_t bytes) {
  const zip::ObjectPart part = {std::move(object), begin, bytes};
  if (begin > part.object->size() || bytes > part.object->size() - begin) {
    return part.Invalid("it ends before a part of it that is to be there; copy it again");
  }
  return ReadPart(part);
}

absl::StatusOr<pickle::Parsed> ReadPickle(const Storage& storage, const std::string& path,
                                          SourceFile& file) {
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadableObject> object, storage.Open(path));
  const pickle::Limits limits;
  if (object->size() > pickle::kLongPickle && object->size() <= limits.pickle_bytes) {
    std::vector<std::byte> begin(pickle::kLongPickle);
    CKPTD_RETURN_IF_ERROR(object->ReadAt(0, begin));
    CKPTD_RETURN_IF_ERROR(pickle::CheckBegin(begin));
  }
  CKPTD_ASSIGN_OR_RETURN(TextObject read, ReadText(storage, path, limits.pickle_bytes));
  file = std::move(read.identity);
  return pickle::Parse(std::as_bytes(std::span(read.text)), limits);
}

}  // namespace ckptd::torch
