#include "common/source/formats/offload/index_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/format.h"
#include "common/source/text.h"

namespace ckptd::offload {
namespace {

// An array of numpy has no more dimensions.
constexpr size_t kMaxDims = 64;
// A file's name has 255 bytes at most.
constexpr size_t kMaxNameBytes = 251;

std::optional<Dtype> DtypeOfNumpy(std::string_view name) {
  static const std::map<std::string_view, Dtype> kNames = {
      {"bool", Dtype::kBool},   {"uint8", Dtype::kU8},         {"int8", Dtype::kI8},
      {"uint16", Dtype::kU16},  {"int16", Dtype::kI16},        {"uint32", Dtype::kU32},
      {"int32", Dtype::kI32},   {"uint64", Dtype::kU64},       {"int64", Dtype::kI64},
      {"float16", Dtype::kF16}, {"bfloat16", Dtype::kBF16},    {"float32", Dtype::kF32},
      {"float64", Dtype::kF64}, {"complex64", Dtype::kC64},    {"complex128", Dtype::kC128}};
  const auto found = kNames.find(name);
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

absl::Status Error(absl::StatusCode code, std::string_view why, std::string_view tensor = {}) {
  const bool is_unsupported = code == absl::StatusCode::kUnimplemented;
  Facts facts;
  if (!tensor.empty()) facts["tensor"] = std::string(tensor.substr(0, 4096));
  return MakeError(code,
                   is_unsupported ? reason::kSourceUnsupported : reason::kSourceInvalid,
                   fmt::format("{}; {}", why,
                               is_unsupported ? "load the checkpoint that it was made from"
                                              : "offload the weights again"),
                   facts);
}

// Receives the parser's events. One state says where in the index the next one belongs.
class IndexSax : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, IndexSax> {
 public:
  using Size = rapidjson::SizeType;

  absl::Status ErrorAt(size_t byte) const {
    if (!error_.ok()) return error_;
    return Error(absl::StatusCode::kDataLoss,
                 fmt::format("it is not valid JSON near byte {}", byte));
  }
  std::vector<Entry> Finish() {
    std::vector<Entry> out;
    out.reserve(entries_.size());
    for (auto& [name, entry] : entries_) out.push_back(std::move(entry));
    return out;
  }

  // All that is neither number, text, list nor object.
  bool Default() { return Other(); }
  bool Uint(unsigned value) { return Uint64(value); }
  bool Uint64(uint64_t value);
  bool String(const char* text, Size size, bool /*copy*/);
  bool StartObject();
  bool Key(const char* text, Size size, bool /*copy*/);
  bool EndObject(Size /*members*/);
  bool StartArray();
  bool EndArray(Size /*elements*/) {
    if (state_ == State::kIgnored) return LeaveIgnored();
    state_ = State::kEntry;
    return true;
  }

 private:
  enum class State : uint8_t {
    kRoot,        // before the outermost object
    kIndex,       // in it, a key comes next
    kEntryValue,  // a tensor's object comes next
    kEntry,       // in it, a key comes next
    kDtype,       // its value comes next, as of the others
    kShapeValue,
    kShape,  // in the array
    kSafetensorsFile,
    kIgnored,  // of an unknown key, or inside of its value
  };

  bool Fail(absl::StatusCode code, const std::string& why) {
    error_ = Error(code, why, entry_.name);
    return false;
  }
  bool Invalid(std::string_view why) {
    const std::string where = state_ == State::kRoot ? "" : Quoted(entry_.name) + " ";
    return Fail(absl::StatusCode::kDataLoss, fmt::format("{}{}", where, why));
  }
  // A value that only an ignored key may have.
  bool Other();
  bool LeaveIgnored() {
    if (--ignored_depth_ == 0) state_ = State::kEntry;
    return true;
  }
  bool FinishEntry();

  State state_ = State::kRoot;
  uint64_t ignored_depth_ = 0;
  absl::Status error_;
  std::map<std::string, Entry> entries_;
  Entry entry_;
  bool has_shape_ = false;
};

bool IndexSax::Other() {
  switch (state_) {
    case State::kRoot:
      return Invalid("it is not an object");
    case State::kIgnored:
      if (ignored_depth_ == 0) state_ = State::kEntry;
      return true;
    case State::kDtype:
      return Invalid("has a dtype that is no string");
    case State::kShapeValue:
    case State::kShape:
      return Invalid("has a shape that is no list of whole numbers below 2^64");
    default:
      return Invalid("is no object with dtype and shape");
  }
}

bool IndexSax::Uint64(uint64_t value) {
  if (state_ != State::kShape) return Other();
  if (entry_.shape.size() == kMaxDims) {
    return Invalid(fmt::format("has more than {} dimensions", kMaxDims));
  }
  entry_.shape.push_back(value);
  return true;
}

bool IndexSax::String(const char* text, Size size, bool /*copy*/) {
  if (state_ == State::kSafetensorsFile) {
    return Fail(absl::StatusCode::kUnimplemented,
                fmt::format("{} lies in a safetensors file", Quoted(entry_.name)));
  }
  if (state_ != State::kDtype) return Other();
  const std::string_view name(text, size);
  const std::optional<Dtype> dtype = DtypeOfNumpy(name);
  if (!dtype.has_value()) {
    return Fail(absl::StatusCode::kUnimplemented,
                fmt::format("{} has the type {}, which is not known", Quoted(entry_.name),
                            Quoted(name)));
  }
  entry_.dtype = *dtype;
  state_ = State::kEntry;
  return true;
}

bool IndexSax::StartObject() {
  if (state_ == State::kRoot) {
    state_ = State::kIndex;
  } else if (state_ == State::kEntryValue) {
    state_ = State::kEntry;
  } else if (state_ == State::kIgnored) {
    ++ignored_depth_;
  } else {
    return Other();
  }
  return true;
}

bool IndexSax::StartArray() {
  if (state_ == State::kIgnored) {
    ++ignored_depth_;
    return true;
  }
  if (state_ != State::kShapeValue) return Other();
  entry_.shape.clear();
  has_shape_ = true;
  state_ = State::kShape;
  return true;
}

bool IndexSax::Key(const char* text, Size size, bool /*copy*/) {
  const std::string_view key(text, size);
  if (state_ == State::kEntry) {
    state_ = key == "dtype"              ? State::kDtype
             : key == "shape"            ? State::kShapeValue
             : key == "safetensors_file" ? State::kSafetensorsFile
                                         : State::kIgnored;
  }
  if (state_ != State::kIndex) return true;
  state_ = State::kEntryValue;
  entry_ = Entry();
  entry_.name = key;
  has_shape_ = false;
  const bool is_path = key.find_first_of(std::string_view("/\0", 2)) != std::string_view::npos;
  if (!key.empty() && key.size() <= kMaxNameBytes && !is_path) return true;
  return Fail(absl::StatusCode::kInvalidArgument,
              fmt::format("{} cannot be the name of a file in its folder", Quoted(key)));
}

bool IndexSax::EndObject(Size /*members*/) {
  if (state_ == State::kIgnored) return LeaveIgnored();
  if (state_ == State::kIndex) return true;
  return FinishEntry();
}

bool IndexSax::FinishEntry() {
  state_ = State::kIndex;
  if (entry_.dtype == Dtype::kUnspecified) return Invalid("has no dtype");
  if (!has_shape_) return Invalid("has no shape");
  if (entries_.size() == kMaxSourceFiles && !entries_.contains(entry_.name)) {
    return Fail(absl::StatusCode::kInvalidArgument,
                fmt::format("it has more than {} tensors", kMaxSourceFiles));
  }
  entries_.insert_or_assign(entry_.name, entry_);
  return true;
}

}  // namespace

absl::StatusOr<std::vector<Entry>> ParseIndex(std::string_view json) {
  IndexSax sax;
  const auto fault = ReadJson(std::string(json), JsonNumbers::kOfKind, sax);
  if (fault.has_value()) return sax.ErrorAt(*fault);
  return sax.Finish();
}

}  // namespace ckptd::offload
