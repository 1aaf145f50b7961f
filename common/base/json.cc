#include "common/base/json.h"

#include <fmt/format.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "common/base/utf8.h"

namespace ckptd {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Whether RapidJSON reads this number right, if it is one.
bool IsPlain(std::string_view number) {
  constexpr size_t kLongest = 24;  // of a double, as others write it
  const size_t mark = number.find_first_of("eE");
  if (number.size() > kLongest || mark == std::string_view::npos) return number.size() <= kLongest;
  const std::string_view exponent = number.substr(mark + 1);
  return exponent.size() <= 2 || (exponent.size() == 3 && !IsDigit(exponent[0]));
}

// Another number of the same kind, which RapidJSON reads right; no number if `number` is none.
std::string StandIn(std::string_view number) {
  std::string out;
  size_t digits = 0;
  for (const char c : number) {
    digits = IsDigit(c) ? digits + 1 : 0;
    if (digits <= 2) out.push_back(c);
  }
  // A whole number stays too large for 64 bits.
  if (out.find_first_of(".eE") == std::string::npos) out += ".0";
  out.resize(number.size(), ' ');
  return out;
}

// The half of a surrogate pair that the escape at the beginning of `text` stands for: 1 or 2.
int SurrogateHalf(std::string_view text) {
  if (text.size() < 4 || text[1] != 'u' || (text[2] | 0x20) != 'd') return 0;
  if (std::string_view("89abAB").find(text[3]) != std::string_view::npos) return 1;
  return std::string_view("cdefCDEF").find(text[3]) == std::string_view::npos ? 0 : 2;
}

// Moves `at` from a string's first quote to its last one. False: to a fault between them.
bool SkipString(std::string_view text, size_t& at) {
  size_t second_half = 0;  // where one may be; RapidJSON itself wants it there
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] != '\\') continue;
    const int half = SurrogateHalf(text.substr(at));
    if (half == 2 && at != second_half) return false;
    if (half == 1) second_half = at + 6;
    ++at;
  }
  return true;
}

// Moves `at` from a number's first character to its last one. False if it is not taken.
bool SkipNumber(std::string& text, size_t& at, JsonNumbers numbers) {
  const size_t end = std::min(text.find_first_not_of("0123456789+-.eE", at), text.size());
  const std::string_view number = std::string_view(text).substr(at, end - at);
  if (!IsPlain(number)) {
    double value = 0;
    const bool too_large =
        absl::SimpleAtod({number.data(), number.size()}, &value) && std::isinf(value);
    if (too_large || numbers == JsonNumbers::kExact) return false;
    text.replace(at, number.size(), StandIn(number));
  }
  at = end - 1;
  return true;
}

// The bytes of one character of UTF-8.
uint32_t CodePoint(std::string_view character) {
  const size_t more = character.size() - 1;
  uint32_t code = static_cast<unsigned char>(character[0]);
  if (more > 0) code &= 0x3fU >> more;
  for (const char c : character.substr(1))
    code = (code << 6) | (static_cast<unsigned char>(c) & 0x3f);
  return code;
}

}  // namespace

void PrepareJson(std::string& text, JsonNumbers numbers) {
  constexpr char kNotJson = '\x01';  // neither inside of a string nor outside
  if (text.starts_with("\xef\xbb\xbf")) text.replace(0, 3, 3, ' ');
  std::replace(text.begin(), text.end(), '\0', kNotJson);
  size_t depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    bool good = true;
    if (c == '"') {
      good = SkipString(text, at);
    } else if (c == '-' || IsDigit(c)) {
      good = SkipNumber(text, at, numbers);
    } else if (c == 'I') {
      good = text.compare(at, 8, "Infinity") == 0;  // RapidJSON takes Inf too
    } else if (c == '{' || c == '[') {
      good = ++depth <= kMaxJsonDepth;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
    if (!good) {
      text[at] = kNotJson;
      return;
    }
  }
}

std::string ToAsciiJson(std::string_view json) {
  std::string out;
  while (!json.empty()) {
    const size_t bytes = Utf8SequenceAt(json);
    const uint32_t code = bytes == 0 ? 0xfffd : CodePoint(json.substr(0, bytes));
    json.remove_prefix(std::max<size_t>(bytes, 1));
    if (code < 0x7f) {
      out += static_cast<char>(code);
    } else if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
    }
  }
  return out;
}

std::string JsonString(std::string_view text, JsonCharacters characters) {
  constexpr std::string_view kShort = "\b\f\n\r\t\"\\";
  std::string out = "\"";
  while (!text.empty()) {
    const size_t bytes = Utf8SequenceAt(text);
    const std::string_view shown = bytes == 0 ? "\xef\xbf\xbd" : text.substr(0, bytes);
    text.remove_prefix(std::max<size_t>(bytes, 1));
    if (const size_t at = kShort.find(shown); at != std::string_view::npos) {
      out.append({'\\', "bfnrt\"\\"[at]});
    } else if (CodePoint(shown) < 0x20) {
      out += fmt::format("\\u{:04x}", CodePoint(shown));
    } else {
      out += shown;
    }
  }
  out += '"';
  return characters == JsonCharacters::kAscii ? ToAsciiJson(out) : out;
}

std::optional<size_t> ParseJson(std::string_view text, JsonNumbers numbers,
                                rapidjson::Document& out) {
  std::optional<size_t> fault;
  const auto read = [&](rapidjson::Document& handler) {
    fault = ReadJson(std::string(text), numbers, handler);
    return !fault.has_value();
  };
  out.SetNull();
  out.Populate(read);
  return fault;
}

}  // namespace ckptd
