#include "common/source/formats/unrecognised/object.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/unrecognised/head.h"
#include "common/source/pickle/pickle.h"
#include "common/source/text.h"
#include "common/source/zip/archive.h"

namespace ckptd::unrecognised {
namespace {

using std::string_view_literals::operator""sv;

constexpr uint64_t kHeadBytes = 4096;
// The record that ends a zip file, and the longest comment in it.
constexpr uint64_t kZipEndBytes = 22 + 65535;
// Longer pickles are not looked into.
constexpr uint64_t kMostUnpickled = 16 << 20;

struct Object {
  std::string path;
  std::shared_ptr<const ReadableObject> object;
  std::string head;

  uint64_t bytes() const { return object->size() - object->begin(); }
};

absl::Status Refused(const Object& object, const Finding& finding) {
  return MakeError(
      finding.is_damage ? absl::StatusCode::kDataLoss : absl::StatusCode::kUnimplemented,
      finding.is_damage ? reason::kSourceInvalid : reason::kSourceUnsupported,
      fmt::format("opening {}: it is {}; {}", object.path, finding.what, finding.advice),
      {{"file", object.path}});
}

absl::StatusOr<std::string> ReadRange(const Object& object, uint64_t begin, uint64_t bytes) {
  std::string out(static_cast<size_t>(bytes), '\0');
  CKPTD_RETURN_IF_ERROR(object.object->ReadAt(object.object->begin() + begin,
                                              std::as_writable_bytes(std::span(out))));
  return out;
}

absl::StatusOr<std::string> ReadTail(const Object& object, uint64_t most) {
  const uint64_t bytes = std::min(object.bytes(), most);
  return ReadRange(object, object.bytes() - bytes, bytes);
}

// The records of a zip file say what it is.
absl::Status WhyNoZipOfTorch(const Object& object) {
  CKPTD_ASSIGN_OR_RETURN(const std::string tail, ReadTail(object, kZipEndBytes));
  if (tail.find("PK\x05\x06"sv) == std::string::npos) {
    return Refused(object, {fmt::format("the beginning of a zip file (such as torch.save writes), "
                                        "cut after {} bytes",
                                        object.bytes()),
                            "finish the download or the copy", true});
  }
  absl::StatusOr<zip::Archive> archive = zip::Archive::Open(object.object);
  if (!archive.ok()) return archive.status();
  const auto has = [&archive](std::string_view end) {
    return std::any_of(archive->records().begin(), archive->records().end(),
                       [end](const zip::Record& record) { return record.name.ends_with(end); });
  };
  if (has("/constants.pkl")) {
    return Refused(object,
                   {"TorchScript, a program with its weights",
                    "save the model's state_dict() by torch.save or as safetensors", false});
  }
  if (has(".npy")) {
    return Refused(object,
                   {"NumPy arrays (.npz)", "save them by torch.save or as safetensors", false});
  }
  if (has(".weights.h5")) {
    return Refused(object, {"a Keras model", "save the model by PyTorch or as safetensors", false});
  }
  const auto& records = archive->records();
  return Refused(object,
                 {fmt::format("a zip archive of {} files{}, and not of torch.save", records.size(),
                              records.empty() ? "" : ", first " + Quoted(records[0].name)),
                  "unpack it, and name what is in it", false});
}

// An index of TensorFlow's checkpoints ends so, as every table of LevelDB does.
bool EndsAsTable(const Object& object) {
  const absl::StatusOr<std::string> tail = ReadTail(object, 8);
  return tail.ok() && *tail == "\x57\xfb\x80\x8b\x24\x75\x47\xdb"sv;
}

bool BeginsAsPickle(std::string_view head) {
  return head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

// Nullopt: it is none. Those before protocol 2 begin like anything.
std::optional<absl::Status> WhyNoPickleOfTorch(const Object& object) {
  const bool is_pickle = BeginsAsPickle(object.head);
  if (!is_pickle && object.bytes() > kMostUnpickled) return std::nullopt;
  absl::StatusOr<std::string> bytes =
      ReadRange(object, 0, std::min(object.bytes(), kMostUnpickled));
  if (!bytes.ok()) return bytes.status();
  const auto parsed = pickle::Parse(std::as_bytes(std::span(*bytes)));
  const bool is_unsafe = ReasonOf(parsed.status()) == reason::kSourceUnsafe;
  const bool is_whole = parsed.ok() && parsed->bytes == object.bytes();
  if (!is_pickle && !is_unsafe && !is_whole) return std::nullopt;
  if (!parsed.ok() && bytes->size() == object.bytes()) {
    return WithContext(parsed.status(), "reading " + object.path);
  }
  if (bytes->find("_load_from_bytes") != std::string::npos) {
    return Refused(
        object, {"tensors in a pickle, which pickle.dump wrote", "save them by torch.save", false});
  }
  std::string_view name = parsed.ok() ? parsed->document.root->ClassName() : std::string_view();
  const std::string of = name.empty() ? "" : " of " + Escape(name.substr(0, 100));
  return Refused(object, {fmt::format("a pickle{}, and not of torch.save", of),
                          "name the checkpoint itself", false});
}

absl::Status WhyNoCheckpoint(const Object& object) {
  if (object.bytes() == 0) {
    return Refused(object, {"empty", "finish the download or the save", true});
  }
  if (object.head.find_first_not_of('\0') == std::string::npos) {
    return Refused(object, {"zeros at its beginning, as a file has that was not filled yet",
                            "finish the download or the copy", true});
  }
  if (object.head.starts_with("PK\x03\x04") || object.head.starts_with("PK\x05\x06")) {
    return WhyNoZipOfTorch(object);
  }
  const std::optional<absl::Status> pickle = WhyNoPickleOfTorch(object);
  if (pickle.has_value()) return *pickle;
  if (const auto foreign = FindForeign(object.head)) return Refused(object, *foreign);
  if (const auto text = FindText(object.head)) return Refused(object, *text);
  if (EndsAsTable(object)) {
    return Refused(object, {"an index of TensorFlow's checkpoints",
                            "save the model by PyTorch or as safetensors", false});
  }
  return Refused(
      object, {fmt::format("no checkpoint of a format that is read, of {} bytes", object.bytes()),
               "name a file or a folder of safetensors, of torch.save, of torch's "
               "distributed checkpoints or of GGUF",
               true});
}

}  // namespace

absl::Status WhyNoCheckpoint(const Storage& storage, const std::string& path) {
  Object object;
  object.path = path;
  CKPTD_ASSIGN_OR_RETURN(object.object, storage.Open(path));
  CKPTD_ASSIGN_OR_RETURN(object.head, ReadRange(object, 0, std::min(object.bytes(), kHeadBytes)));
  return WhyNoCheckpoint(object);
}

}  // namespace ckptd::unrecognised
