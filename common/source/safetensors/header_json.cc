#include "common/source/safetensors/header_json.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/base/json.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

constexpr char kMetadataKey[] = "__metadata__";
constexpr char kBadJson[] = "InvalidHeaderDeserialization";

// Receives the parser's events. One state says where in the header the next event belongs.
// Nothing nests deeper than an ignored value, whose levels are counted.
class HeaderSax : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, HeaderSax> {
 public:
  using Size = rapidjson::SizeType;
  explicit HeaderSax(SafetensorsHeader& header) : header_(header) {}

  // The error of a header that is refused: reading it ended at `byte`.
  absl::Status ErrorAt(size_t byte) {
    if (error_.ok()) Fail(kBadJson, fmt::format("its header is not valid JSON near byte {}", byte));
    return error_;
  }

  bool Null() {
    if (state_ != State::kMetadataValue) return Other("null");
    state_ = State::kHeader;
    return true;
  }
  bool Bool(bool /*value*/) { return Other("a boolean"); }
  // Only numbers with a minus sign come here, -0 among them.
  bool Int(int value) { return Int64(value); }
  bool Int64(int64_t /*value*/) { return Other("a negative number"); }
  bool Uint(unsigned value) { return Uint64(value); }
  bool Uint64(uint64_t value);
  bool Double(double /*value*/) { return Other("a fractional or too large number"); }
  bool String(const char* text, Size size, bool /*copy*/);
  bool StartObject();
  bool Key(const char* text, Size size, bool /*copy*/);
  bool EndObject(Size /*members*/);
  bool StartArray();
  bool EndArray(Size /*elements*/);

 private:
  enum class State : uint8_t {
    kRoot,            // before the outermost object
    kHeader,          // in it, a key comes next
    kMetadataValue,   // the value of __metadata__ comes next
    kMetadata,        // in it, a key comes next
    kMetadataString,  // its value comes next
    kEntryValue,      // a tensor's object comes next
    kEntry,           // in it, a key comes next
    kDtypeValue,
    kShapeValue,
    kShape,  // in the array
    kOffsetsValue,
    kOffsets,       // in the array
    kIgnoredValue,  // of an unknown key in an entry
    kIgnored,       // inside such an object or array
    kEnd,
  };

  bool Fail(std::string_view error, const std::string& why) {
    const std::string where = in_tensor_ ? fmt::format("tensor {}: ", Quoted(tensor_.name)) : "";
    error_ = HeaderError(error, where + why, in_tensor_ ? tensor_.name : std::string());
    return false;
  }
  // A value that only an ignored key may have.
  bool Other(std::string_view found);
  const char* Expected() const;
  bool Enter();
  bool StartTensor(std::string name);
  bool StartField(const std::string& field);
  bool Once(bool already, const std::string& field, State next);
  bool FinishTensor();

  SafetensorsHeader& header_;
  absl::Status error_;
  State state_ = State::kRoot;
  uint32_t depth_ = 0;          // of objects and arrays
  uint32_t ignored_depth_ = 0;  // of those, inside an ignored value
  bool has_metadata_ = false;
  std::string metadata_key_;

  bool in_tensor_ = false;
  HeaderTensor tensor_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  uint32_t offsets_ = 0;  // numbers seen in data_offsets
};

const char* HeaderSax::Expected() const {
  switch (state_) {
    case State::kMetadataValue:
      return "__metadata__ must be an object";
    case State::kMetadataString:
      return "every value in __metadata__ must be a string";
    case State::kEntryValue:
      return "a tensor must be an object";
    case State::kDtypeValue:
      return "dtype must be a string";
    case State::kShapeValue:
      return "shape must be an array";
    case State::kShape:
      return "shape must hold whole numbers below 2^64";
    case State::kOffsetsValue:
      return "data_offsets must be an array";
    case State::kOffsets:
      return "data_offsets must hold two whole numbers below 2^64";
    default:
      return "the header must be an object";
  }
}

bool HeaderSax::Other(std::string_view found) {
  if (state_ == State::kIgnored) return true;
  if (state_ == State::kIgnoredValue) {
    state_ = State::kEntry;
    return true;
  }
  return Fail(kBadJson, fmt::format("{}, not {}", Expected(), found));
}

bool HeaderSax::Uint64(uint64_t value) {
  if (state_ == State::kShape) {
    if (tensor_.shape.size() == kMaxTensorDims) {
      return Fail("LimitExceeded", fmt::format("more than {} dimensions", kMaxTensorDims));
    }
    tensor_.shape.push_back(value);
    return true;
  }
  if (state_ == State::kOffsets) {
    if (offsets_ == 2) return Fail(kBadJson, "data_offsets must hold two numbers, not more");
    (offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
    ++offsets_;
    return true;
  }
  return Other("a number");
}

bool HeaderSax::String(const char* text, Size size, bool /*copy*/) {
  std::string value(text, size);
  if (state_ == State::kMetadataString) {
    const auto [at, is_new] = header_.metadata.insert_or_assign(std::move(metadata_key_), std::move(value));
    if (!is_new) header_.repeated_metadata.Add(at->first);
    state_ = State::kMetadata;
    return true;
  }
  if (state_ == State::kDtypeValue) {
    const std::optional<Dtype> dtype = ParseDtype(value);
    if (!dtype.has_value() || !IsOfSafetensors(*dtype)) {
      return Fail(kBadJson, "unknown dtype " + Quoted(value));
    }
    tensor_.dtype = *dtype;
    state_ = State::kEntry;
    return true;
  }
  return Other("a string");
}

// Counts a level; false when there are too many.
bool HeaderSax::Enter() {
  if (depth_ == kMaxHeaderDepth) {
    return Fail(kBadJson, fmt::format("nested deeper than {} levels", kMaxHeaderDepth));
  }
  ++depth_;
  if (state_ == State::kIgnoredValue) state_ = State::kIgnored;
  if (state_ == State::kIgnored) ++ignored_depth_;
  return true;
}

bool HeaderSax::StartObject() {
  if (!Enter()) return false;
  switch (state_) {
    case State::kIgnored:
      return true;
    case State::kRoot:
      state_ = State::kHeader;
      return true;
    case State::kMetadataValue:
      state_ = State::kMetadata;
      return true;
    case State::kEntryValue:
      state_ = State::kEntry;
      return true;
    default:
      return Other("an object");
  }
}

bool HeaderSax::StartArray() {
  if (!Enter()) return false;
  switch (state_) {
    case State::kIgnored:
      return true;
    case State::kShapeValue:
      state_ = State::kShape;
      return true;
    case State::kOffsetsValue:
      state_ = State::kOffsets;
      return true;
    default:
      return Other("an array");
  }
}

bool HeaderSax::Key(const char* text, Size size, bool /*copy*/) {
  std::string key(text, size);
  switch (state_) {
    case State::kMetadata:
      metadata_key_ = std::move(key);
      state_ = State::kMetadataString;
      return true;
    case State::kEntry:
      return StartField(key);
    case State::kHeader:
      break;
    default:
      return true;
  }
  if (key != kMetadataKey) return StartTensor(std::move(key));
  if (has_metadata_) return Fail(kBadJson, "__metadata__ is stated twice");
  has_metadata_ = true;
  state_ = State::kMetadataValue;
  return true;
}

bool HeaderSax::StartTensor(std::string name) {
  if (header_.tensors.size() == kMaxHeaderTensors) {
    return Fail("LimitExceeded", fmt::format("more than {} tensors", kMaxHeaderTensors));
  }
  if (name.size() > kMaxTensorNameBytes) {
    return Fail("LimitExceeded", fmt::format("the name {} has {} bytes, at most {} are allowed",
                                             Quoted(name), name.size(), kMaxTensorNameBytes));
  }
  tensor_ = HeaderTensor();
  tensor_.name = std::move(name);
  in_tensor_ = true;
  has_dtype_ = has_shape_ = has_offsets_ = false;
  offsets_ = 0;
  state_ = State::kEntryValue;
  return true;
}

bool HeaderSax::Once(bool already, const std::string& field, State next) {
  if (already) return Fail(kBadJson, field + " is stated twice");
  state_ = next;
  return true;
}

bool HeaderSax::StartField(const std::string& field) {
  if (field == "dtype") return Once(std::exchange(has_dtype_, true), field, State::kDtypeValue);
  if (field == "shape") return Once(std::exchange(has_shape_, true), field, State::kShapeValue);
  if (field == "data_offsets") {
    return Once(std::exchange(has_offsets_, true), field, State::kOffsetsValue);
  }
  state_ = State::kIgnoredValue;
  return true;
}

bool HeaderSax::FinishTensor() {
  if (!has_dtype_) return Fail(kBadJson, "it has no dtype");
  if (!has_shape_) return Fail(kBadJson, "it has no shape");
  if (!has_offsets_) return Fail(kBadJson, "it has no data_offsets");
  header_.tensors.push_back(std::move(tensor_));
  in_tensor_ = false;
  state_ = State::kHeader;
  return true;
}

bool HeaderSax::EndObject(Size /*members*/) {
  --depth_;
  switch (state_) {
    case State::kIgnored:
      if (--ignored_depth_ == 0) state_ = State::kEntry;
      return true;
    case State::kMetadata:
      state_ = State::kHeader;
      return true;
    case State::kEntry:
      return FinishTensor();
    default:
      state_ = State::kEnd;
      return true;
  }
}

bool HeaderSax::EndArray(Size /*elements*/) {
  --depth_;
  if (state_ == State::kIgnored) {
    if (--ignored_depth_ == 0) state_ = State::kEntry;
    return true;
  }
  if (state_ == State::kOffsets && offsets_ != 2) {
    return Fail(kBadJson, fmt::format("data_offsets must hold two numbers, not {}", offsets_));
  }
  state_ = State::kEntry;
  return true;
}

}  // namespace

absl::Status ReadHeaderJson(std::string_view json, SafetensorsHeader& header) {
  HeaderSax sax(header);
  // The reference refuses a byte order mark.
  const bool marked = json.starts_with("\xef\xbb\xbf");
  const std::optional<size_t> fault = marked ? 0 : ReadJson(std::string(json), JsonNumbers::kOfKind, sax);
  return fault.has_value() ? sax.ErrorAt(*fault) : absl::OkStatus();
}

}  // namespace ckptd
