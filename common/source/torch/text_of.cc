#include "common/source/torch/text_of.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "absl/strings/escaping.h"
#include "common/base/json.h"

namespace ckptd::torch {
namespace {

using pickle::Kind;
using pickle::Value;

constexpr int kDeepestKey = 4;
constexpr size_t kLongestKey = 65'536;

// 1.0, 1e-08, nan: the shortest text that is this number again.
std::string FloatText(double number, std::string_view nan, std::string_view infinity) {
  if (std::isnan(number)) return std::string(nan);
  if (std::isinf(number)) return (number < 0 ? "-" : "") + std::string(infinity);
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string ComplexText(const Value& value) {
  const auto part = [](double number) { return fmt::format("{}", number); };
  const std::string imaginary = part(value.imaginary());
  if (value.real() == 0 && !std::signbit(value.real())) return imaginary + "j";
  const bool has_sign = imaginary.starts_with('-');
  return fmt::format("({}{}{}j)", part(value.real()), has_sign ? "" : "+", imaginary);
}

// As Python's repr() of bytes.
std::string BytesText(std::string_view bytes) {
  std::string out = "b'";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\'' || c == '\\') {
      out += {'\\', c};
    } else if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out + "'";
}

// As Python's repr(), of a text without its escapes.
std::string Repr(const Value& value, int depth) {
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.boolean() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(value.integer());
    case Kind::kFloat:
      return FloatText(value.real(), "nan", "inf");
    case Kind::kComplex:
      return ComplexText(value);
    case Kind::kText:
      return fmt::format("'{}'", value.text());
    case Kind::kBytes:
      return BytesText(value.text().substr(0, kLongestKey));
    case Kind::kBigInt:
    case Kind::kSymbol:
      return std::string(value.text());
    case Kind::kTuple: {
      std::string out = "(";
      for (const Value* item : value.items()) {
        if (depth == kDeepestKey || out.size() > kLongestKey) return out + "...)";
        out += (out.size() == 1 ? "" : ", ") + Repr(*item, depth + 1);
      }
      return out + (value.items().size() == 1 ? ",)" : ")");
    }
    case Kind::kRecord: {
      // A subclass of str, int and the like.
      const bool is_plain = value.items().size() == 1 && !value.items()[0]->is(Kind::kRecord) &&
                            depth < kDeepestKey;
      if (is_plain && value.items()[0]->is(Kind::kText)) return std::string(value.items()[0]->text());
      return is_plain ? Repr(*value.items()[0], depth + 1)
                      : fmt::format("<{}>", value.ClassName());
    }
    default:
      return "<container>";
  }
}

std::optional<std::string> SetJson(const Value& value, size_t limit) {
  std::string out = "[";
  for (const Value* item : value.items()) {
    const auto json = PlainJson(*item, limit);
    if (!json.has_value() || out.size() + json->size() > limit) return std::nullopt;
    out += (out.size() == 1 ? "" : ", ") + *json;
  }
  return out + "]";
}

// As Python's float.fromhex() reads it.
std::string HexJson(double number) {
  const bool is_finite = std::isfinite(number);
  return JsonString(is_finite ? fmt::format("{:a}", number) : FloatText(number, "nan", "inf"),
                    JsonCharacters::kUtf8);
}

std::optional<std::string> Typed(const Value& value, size_t limit, int depth) {
  if (value.text().size() > limit) return std::nullopt;
  switch (value.kind()) {
    case Kind::kFloat:
      return fmt::format("[\"float\", {}]", HexJson(value.real()));
    case Kind::kComplex:
      return fmt::format("[\"complex\", [{}, {}]]", HexJson(value.real()),
                         HexJson(value.imaginary()));
    case Kind::kBytes:
      return fmt::format("[\"bytes\", \"{}\"]",
                         absl::Base64Escape({value.text().data(), value.text().size()}));
    case Kind::kTuple:
    case Kind::kSet: {
      std::string out = value.is(Kind::kSet) ? "[\"set\", [" : "[\"tuple\", [";
      bool is_first = true;
      for (const Value* item : value.items()) {
        const auto json = depth < kDeepestKey ? Typed(*item, limit, depth + 1) : std::nullopt;
        if (!json.has_value() || out.size() + json->size() > limit) return std::nullopt;
        out += (is_first ? "" : ", ") + *json;
        is_first = false;
      }
      return out + "]]";
    }
    case Kind::kSymbol:
      return std::nullopt;
    default:
      return PlainJson(value, limit);
  }
}

}  // namespace

std::string KeyText(const Value& key) {
  return key.is(Kind::kText) ? std::string(key.text()) : Repr(key, 0);
}

std::optional<std::string> PlainJson(const Value& value, size_t limit) {
  if (value.text().size() > limit) return std::nullopt;
  switch (value.kind()) {
    case Kind::kNone:
      return "null";
    case Kind::kBool:
      return value.boolean() ? "true" : "false";
    case Kind::kInt:
    case Kind::kBigInt:
      return Repr(value, 0);
    case Kind::kFloat:
      return FloatText(value.real(), "NaN", "Infinity");
    case Kind::kText:
    case Kind::kSymbol:
      return JsonString(value.text(), JsonCharacters::kUtf8);
    case Kind::kComplex:
    case Kind::kBytes:
      return JsonString(Repr(value, 0), JsonCharacters::kUtf8);
    case Kind::kSet:
      return SetJson(value, limit);
    default:
      return std::nullopt;
  }
}

std::optional<std::string> TypedJson(const Value& value, size_t limit) {
  return Typed(value, limit, 0);
}

}  // namespace ckptd::torch
