#include "common/source/formats/gguf/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/digest.h"
#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/source/text.h"

namespace ckptd::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie");

constexpr std::string_view kMagic = "GGUF";
constexpr size_t kMaxDims = 8;  // ggml has 4
constexpr uint64_t kMaxKeyBytes = 65'535;
constexpr uint64_t kMaxKeptTextBytes = 65'536;  // longer texts are passed over
constexpr uint32_t kDefaultAlignment = 32;
constexpr char kAlignmentKey[] = "general.alignment";

// Types of values, as the format numbers them.
enum class ValueType : uint32_t {
  kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kText, kArray, kU64, kI64, kF64,
};

// The bytes of one number or boolean; 0 for values of other types.
uint64_t BytesOf(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64:
      return 8;
    default:
      return 0;
  }
}

absl::Status Invalid(std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("its header {}; copy or download the file again", why));
}

absl::Status LimitPassed(std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("its header has more than {}; name a file that was made for ggml",
                               what));
}

// Reads an object from its beginning on.
class Cursor {
 public:
  explicit Cursor(const ReadableObject& object) : object_(object) {}

  uint64_t at() const { return window_begin_ + used_; }
  uint64_t hash() const { return hash_.Value(); }
  void set_big_endian() { big_endian_ = true; }

  template <typename T>
  absl::StatusOr<T> Number() {
    std::array<std::byte, sizeof(T)> bytes = {};
    CKPTD_RETURN_IF_ERROR(Take(bytes.size(), bytes.data()));
    if (big_endian_) std::reverse(bytes.begin(), bytes.end());
    T value;
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  absl::StatusOr<std::string> Text(uint64_t limit, std::string_view what);
  absl::StatusOr<std::string> Bytes(uint64_t bytes) {
    std::string out(static_cast<size_t>(bytes), '\0');
    CKPTD_RETURN_IF_ERROR(Take(bytes, reinterpret_cast<std::byte*>(out.data())));
    return out;
  }
  absl::Status Skip(uint64_t bytes) { return Take(bytes, nullptr); }

 private:
  // Copies the next bytes to `out`, or passes over them where that is null.
  absl::Status Take(uint64_t bytes, std::byte* out);
  absl::Status Refill();

  const ReadableObject& object_;
  bool big_endian_ = false;
  std::vector<std::byte> window_;
  uint64_t window_begin_ = 0;
  size_t used_ = 0;
  Xxh3Stream hash_;
};

absl::Status Cursor::Refill() {
  constexpr uint64_t kWindowBytes = 64 * 1024;
  const uint64_t begin = at();
  const uint64_t bytes = std::min(kWindowBytes, object_.size() - begin);
  window_.resize(static_cast<size_t>(bytes));
  CKPTD_RETURN_IF_ERROR(object_.ReadAt(begin, window_));
  window_begin_ = begin;
  used_ = 0;
  return absl::OkStatus();
}

absl::Status Cursor::Take(uint64_t bytes, std::byte* out) {
  if (bytes > object_.size() - at()) return Invalid("ends behind the end of the file");
  if (bytes > kMaxHeaderBytes - std::min(at(), kMaxHeaderBytes)) {
    return LimitPassed(fmt::format("{} bytes", kMaxHeaderBytes));
  }
  while (bytes > 0) {
    if (used_ == window_.size()) CKPTD_RETURN_IF_ERROR(Refill());
    const size_t part = std::min<uint64_t>(bytes, window_.size() - used_);
    const auto taken = std::span(window_).subspan(used_, part);
    hash_.Update(taken);
    if (out != nullptr) out = std::copy(taken.begin(), taken.end(), out);
    used_ += part;
    bytes -= part;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Cursor::Text(uint64_t limit, std::string_view what) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t bytes, Number<uint64_t>());
  if (bytes > limit) return LimitPassed(fmt::format("{} bytes in {}", limit, what));
  CKPTD_ASSIGN_OR_RETURN(std::string out, Bytes(bytes));
  if (ValidUtf8Prefix(out) != out.size()) return Invalid(fmt::format("has {} not in UTF-8", what));
  return out;
}

// A number as JSON, which has neither NaN nor infinity.
template <typename T>
std::string JsonOf(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) return fmt::format("\"{}\"", value);
  }
  return fmt::format("{}", value);
}

class HeaderReader {
 public:
  explicit HeaderReader(const ReadableObject& object) : cursor_(object), object_(object) {}
  absl::StatusOr<Header> Read();

 private:
  absl::Status ReadVersion();
  absl::Status ReadPair();
  absl::StatusOr<std::optional<std::string>> ReadNumberOf(ValueType type);
  // Reads a value; nullopt for one that is passed over.
  absl::StatusOr<std::optional<std::string>> ReadValue(ValueType type);
  absl::Status SkipArray();
  absl::Status SkipText();
  absl::Status SetAlignment(ValueType type, const std::optional<std::string>& value);
  absl::Status ReadTensor();
  template <typename T>
  absl::StatusOr<std::optional<std::string>> ReadNumber() {
    CKPTD_ASSIGN_OR_RETURN(const T value, cursor_.Number<T>());
    return JsonOf(value);
  }

  Cursor cursor_;
  const ReadableObject& object_;
  uint64_t alignment_ = kDefaultAlignment;
  Header out_;
};

absl::Status HeaderReader::ReadVersion() {
  CKPTD_RETURN_IF_ERROR(cursor_.Skip(kMagic.size()));
  CKPTD_ASSIGN_OR_RETURN(uint32_t version, cursor_.Number<uint32_t>());
  // A small number from its other end.
  if ((version & 0xffff) == 0) {
    version = __builtin_bswap32(version);
    out_.big_endian = true;
    cursor_.set_big_endian();
  }
  if (version == 2 || version == 3) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("it is of version {}, and versions 2 and 3 are read; convert the "
                               "model again",
                               version));
}

absl::Status HeaderReader::SkipText() {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t bytes, cursor_.Number<uint64_t>());
  return cursor_.Skip(bytes);
}

absl::Status HeaderReader::SkipArray() {
  CKPTD_ASSIGN_OR_RETURN(const uint32_t type, cursor_.Number<uint32_t>());
  CKPTD_ASSIGN_OR_RETURN(const uint64_t count, cursor_.Number<uint64_t>());
  if (type == static_cast<uint32_t>(ValueType::kText)) {
    for (uint64_t i = 0; i < count; ++i) CKPTD_RETURN_IF_ERROR(SkipText());
    return absl::OkStatus();
  }
  const uint64_t element = BytesOf(static_cast<ValueType>(type));
  // ggml does not read lists of lists either.
  if (element == 0) return Invalid(fmt::format("has a list of values of type {}", type));
  const std::optional<uint64_t> bytes = CheckedMultiply(count, element);
  if (!bytes.has_value()) return Invalid(fmt::format("has a list of {} values", count));
  return cursor_.Skip(*bytes);
}

absl::StatusOr<std::optional<std::string>> HeaderReader::ReadNumberOf(ValueType type) {
  switch (type) {
    case ValueType::kU8:
      return ReadNumber<uint8_t>();
    case ValueType::kI8:
      return ReadNumber<int8_t>();
    case ValueType::kU16:
      return ReadNumber<uint16_t>();
    case ValueType::kI16:
      return ReadNumber<int16_t>();
    case ValueType::kU32:
      return ReadNumber<uint32_t>();
    case ValueType::kI32:
      return ReadNumber<int32_t>();
    case ValueType::kF32:
      return ReadNumber<float>();
    case ValueType::kU64:
      return ReadNumber<uint64_t>();
    case ValueType::kI64:
      return ReadNumber<int64_t>();
    case ValueType::kF64:
      return ReadNumber<double>();
    default:
      return Invalid(fmt::format("has a value of type {}", static_cast<uint32_t>(type)));
  }
}

absl::StatusOr<std::optional<std::string>> HeaderReader::ReadValue(ValueType type) {
  switch (type) {
    case ValueType::kBool: {
      CKPTD_ASSIGN_OR_RETURN(const auto value, cursor_.Number<uint8_t>());
      return value != 0 ? "true" : "false";
    }
    case ValueType::kText: {
      CKPTD_ASSIGN_OR_RETURN(const uint64_t bytes, cursor_.Number<uint64_t>());
      if (bytes > kMaxKeptTextBytes) {
        CKPTD_RETURN_IF_ERROR(cursor_.Skip(bytes));
        return std::nullopt;
      }
      CKPTD_ASSIGN_OR_RETURN(const std::string text, cursor_.Bytes(bytes));
      return JsonString(text, JsonCharacters::kUtf8);
    }
    case ValueType::kArray:
      CKPTD_RETURN_IF_ERROR(SkipArray());
      return std::nullopt;
    default:
      return ReadNumberOf(type);
  }
}

absl::Status HeaderReader::SetAlignment(ValueType type, const std::optional<std::string>& value) {
  if (type != ValueType::kU32) return Invalid("has an alignment that is no number of 32 bits");
  alignment_ = 0;
  for (const char digit : *value) alignment_ = alignment_ * 10 + static_cast<uint64_t>(digit - '0');
  if (std::has_single_bit(alignment_)) return absl::OkStatus();
  return Invalid(fmt::format("has an alignment of {}, which is no power of two", alignment_));
}

absl::Status HeaderReader::ReadPair() {
  CKPTD_ASSIGN_OR_RETURN(std::string key, cursor_.Text(kMaxKeyBytes, "a key"));
  CKPTD_ASSIGN_OR_RETURN(const uint32_t number, cursor_.Number<uint32_t>());
  const auto type = static_cast<ValueType>(number);
  CKPTD_ASSIGN_OR_RETURN(std::optional<std::string> value, ReadValue(type));
  if (key == kAlignmentKey) CKPTD_RETURN_IF_ERROR(SetAlignment(type, value));
  if (value.has_value()) out_.values.try_emplace(std::move(key), *std::move(value));
  return absl::OkStatus();
}

absl::Status HeaderReader::ReadTensor() {
  TensorInfo& tensor = out_.tensors.emplace_back();
  CKPTD_ASSIGN_OR_RETURN(tensor.name, cursor_.Text(kMaxKeyBytes, "a tensor's name"));
  CKPTD_ASSIGN_OR_RETURN(const uint32_t dims, cursor_.Number<uint32_t>());
  if (dims > kMaxDims) {
    return Invalid(fmt::format("gives tensor {} {} dimensions", Quoted(tensor.name), dims));
  }
  for (uint32_t i = 0; i < dims; ++i) {
    CKPTD_ASSIGN_OR_RETURN(const uint64_t size, cursor_.Number<uint64_t>());
    tensor.shape.insert(tensor.shape.begin(), size);
  }
  CKPTD_ASSIGN_OR_RETURN(tensor.type, cursor_.Number<uint32_t>());
  CKPTD_ASSIGN_OR_RETURN(tensor.offset, cursor_.Number<uint64_t>());
  return absl::OkStatus();
}

absl::StatusOr<Header> HeaderReader::Read() {
  CKPTD_RETURN_IF_ERROR(ReadVersion());
  CKPTD_ASSIGN_OR_RETURN(const uint64_t tensors, cursor_.Number<uint64_t>());
  CKPTD_ASSIGN_OR_RETURN(const uint64_t pairs, cursor_.Number<uint64_t>());
  if (tensors > kMaxTensors) return LimitPassed(fmt::format("{} tensors", kMaxTensors));
  if (pairs > kMaxKeys) return LimitPassed(fmt::format("{} keys", kMaxKeys));
  for (uint64_t i = 0; i < pairs; ++i) CKPTD_RETURN_IF_ERROR(ReadPair());
  for (uint64_t i = 0; i < tensors; ++i) CKPTD_RETURN_IF_ERROR(ReadTensor());
  out_.data_start = CeilDivide(cursor_.at(), alignment_) * alignment_;
  // A file without tensors may end with its header.
  if (out_.data_start > object_.size() && !out_.tensors.empty()) {
    return Invalid("ends where the file does, in front of its tensors");
  }
  out_.hash = cursor_.hash();
  return std::move(out_);
}

}  // namespace

bool IsGguf(const ReadableObject& object) {
  std::array<char, kMagic.size()> start = {};
  return object.ReadAt(0, std::as_writable_bytes(std::span(start))).ok() &&
         std::string_view(start.data(), start.size()) == kMagic;
}

absl::StatusOr<Header> ReadHeader(const ReadableObject& object) {
  if (!IsGguf(object)) return Invalid("does not begin with GGUF");
  return HeaderReader(object).Read();
}

}  // namespace ckptd::gguf
