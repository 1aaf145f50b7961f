// Opcodes that hold plain values.
#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <type_traits>

#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/source/pickle/escapes.h"
#include "common/source/pickle/interpreter.h"
#include "common/source/pickle/numbers.h"

namespace ckptd::pickle {

absl::Status Interpreter::TakeBytes(uint64_t count, std::string_view& out) {
  if (count > bytes_.size() - at_) [[unlikely]]
    return CutOff();
  if (count > limits_.text_bytes) [[unlikely]] {
    return PastLimit("bytes in one text", limits_.text_bytes);
  }
  out = bytes_.substr(at_, count);
  at_ += count;
  return absl::OkStatus();
}

absl::Status Interpreter::TakeLine(std::string_view& out) {
  const size_t end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) return CutOff();
  CKPTD_RETURN_IF_ERROR(TakeBytes(end - at_, out));
  ++at_;
  return absl::OkStatus();
}

absl::Status Interpreter::TakeIndex(uint64_t& out) {
  std::string_view line;
  CKPTD_RETURN_IF_ERROR(TakeLine(line));
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), out);
  if (error == std::errc() && end == line.data() + line.size()) return absl::OkStatus();
  return Damaged("a number of its memo is no number");
}

absl::Status Interpreter::None() {
  Push(Builder::None());
  return absl::OkStatus();
}

template <bool kValue>
absl::Status Interpreter::Bool() {
  Push(Builder::Bool(kValue));
  return absl::OkStatus();
}

template <typename Integer>
absl::Status Interpreter::Int() {
  Integer value = 0;
  CKPTD_RETURN_IF_ERROR(Read(value));
  Push(builder_.Int(value));
  return absl::OkStatus();
}

absl::Status Interpreter::PushDigits(std::string_view digits) {
  const std::optional<int64_t> small = SmallNumber(digits);
  Push(small.has_value() ? builder_.Int(*small) : builder_.BigInt(digits));
  return absl::OkStatus();
}

absl::Status Interpreter::IntLine() {
  std::string_view line;
  CKPTD_RETURN_IF_ERROR(TakeLine(line));
  if (line == "00" || line == "01") {
    Push(Builder::Bool(line == "01"));
    return absl::OkStatus();
  }
  return PushNumberLine(line);
}

absl::Status Interpreter::LongLine() {
  std::string_view line;
  CKPTD_RETURN_IF_ERROR(TakeLine(line));
  if (line.ends_with('L')) line.remove_suffix(1);
  return PushNumberLine(line);
}

absl::Status Interpreter::PushNumberLine(std::string_view line) {
  if (line.size() > limits_.number_bytes) {
    return PastLimit("digits in one number", limits_.number_bytes);
  }
  const std::optional<std::string> digits = CanonicalDigits(line);
  return digits.has_value() ? PushDigits(*digits) : Damaged("a whole number is none");
}

template <typename Length>
absl::Status Interpreter::Long() {
  Length length = 0;
  CKPTD_RETURN_IF_ERROR(Read(length));
  if (std::is_signed_v<Length> && length < 0) return Damaged("a number has a negative length");
  if (static_cast<uint64_t>(length) > limits_.number_bytes) {
    return PastLimit("bytes in one number", limits_.number_bytes);
  }
  std::string_view bytes;
  CKPTD_RETURN_IF_ERROR(TakeBytes(static_cast<uint64_t>(length), bytes));
  return PushDigits(DigitsOf(bytes));
}

absl::Status Interpreter::Float() {
  uint64_t bits = 0;
  CKPTD_RETURN_IF_ERROR(Read(bits));
  Push(builder_.Float(std::bit_cast<double>(__builtin_bswap64(bits))));
  return absl::OkStatus();
}

absl::Status Interpreter::FloatLine() {
  std::string_view line;
  CKPTD_RETURN_IF_ERROR(TakeLine(line));
  double value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || end != line.data() + line.size()) return Damaged("a float is none");
  Push(builder_.Float(value));
  return absl::OkStatus();
}

absl::Status Interpreter::PushText(std::string_view text) {
  if (ValidUtf8Prefix(text) == text.size()) [[likely]] {
    Push(builder_.Text(text));
    return absl::OkStatus();
  }
  const std::optional<std::string> escaped = EscapeSurrogates(text);
  if (!escaped.has_value()) return Damaged("a text is not UTF-8");
  Push(builder_.Text(*escaped));
  return absl::OkStatus();
}

template <typename Length>
absl::Status Interpreter::Text() {
  Length length = 0;
  CKPTD_RETURN_IF_ERROR(Read(length));
  std::string_view text;
  CKPTD_RETURN_IF_ERROR(TakeBytes(length, text));
  return PushText(text);
}

absl::Status Interpreter::TextLine() {
  std::string_view line;
  CKPTD_RETURN_IF_ERROR(TakeLine(line));
  const std::optional<std::string> text = RawUnicode(line);
  if (!text.has_value()) return Damaged("a text has an escape that means nothing");
  Push(builder_.Text(*text));
  return absl::OkStatus();
}

absl::Status Interpreter::PushString(std::string_view bytes) {
  Push(ValidUtf8Prefix(bytes) == bytes.size() ? builder_.Text(bytes) : builder_.Bytes(bytes));
  return absl::OkStatus();
}

template <typename Length>
absl::Status Interpreter::String() {
  Length length = 0;
  CKPTD_RETURN_IF_ERROR(Read(length));
  if (std::is_signed_v<Length> && length < 0) return Damaged("a text has a negative length");
  std::string_view bytes;
  CKPTD_RETURN_IF_ERROR(TakeBytes(static_cast<uint64_t>(length), bytes));
  return PushString(bytes);
}

absl::Status Interpreter::StringLine() {
  std::string_view line;
  CKPTD_RETURN_IF_ERROR(TakeLine(line));
  const std::optional<std::string> bytes = QuotedLiteral(line);
  return bytes.has_value() ? PushString(*bytes) : Damaged("a text has no quotes around it");
}

template <typename Length>
absl::Status Interpreter::Bytes() {
  Length length = 0;
  CKPTD_RETURN_IF_ERROR(Read(length));
  std::string_view bytes;
  CKPTD_RETURN_IF_ERROR(TakeBytes(length, bytes));
  Push(builder_.Bytes(bytes));
  return absl::OkStatus();
}

template absl::Status Interpreter::Bool<false>();
template absl::Status Interpreter::Bool<true>();
template absl::Status Interpreter::Int<uint8_t>();
template absl::Status Interpreter::Int<uint16_t>();
template absl::Status Interpreter::Int<int32_t>();
template absl::Status Interpreter::Long<uint8_t>();
template absl::Status Interpreter::Long<int32_t>();
template absl::Status Interpreter::Text<uint8_t>();
template absl::Status Interpreter::Text<uint32_t>();
template absl::Status Interpreter::Text<uint64_t>();
template absl::Status Interpreter::String<uint8_t>();
template absl::Status Interpreter::String<int32_t>();
template absl::Status Interpreter::Bytes<uint8_t>();
template absl::Status Interpreter::Bytes<uint32_t>();
template absl::Status Interpreter::Bytes<uint64_t>();

}  // namespace ckptd::pickle
