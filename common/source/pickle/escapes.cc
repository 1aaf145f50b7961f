#include "common/source/pickle/escapes.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <cstdint>

#include "common/base/utf8.h"

namespace ckptd::pickle {
namespace {

bool IsSurrogate(uint32_t code) { return code >= 0xd800 && code <= 0xdfff; }

// UTF-8 of a code point, surrogates escaped. Appends nothing, false: there is no such one.
bool AppendCode(uint32_t code, std::string& out) {
  if (code > 0x10ffff) return false;
  if (IsSurrogate(code)) {
    out += fmt::format("\\u{:04x}", code);
  } else if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else {
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr uint8_t kLeads[] = {0, 0xc0, 0xe0, 0xf0};
    out.push_back(static_cast<char>(kLeads[more] | (code >> (6 * more))));
    for (int i = more; i-- > 0;)
      out.push_back(static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f)));
  }
  return true;
}

// So many digits of base 16 at the beginning of `text`.
std::optional<uint32_t> Hexadecimal(std::string_view text, size_t digits) {
  uint32_t code = 0;
  if (text.size() < digits) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, code, 16);
  if (error != std::errc() || end != text.data() + digits) return std::nullopt;
  return code;
}

// One to three digits of base 8, which are taken away.
char Octal(std::string_view& text) {
  uint32_t code = 0;
  for (int i = 0; i < 3 && !text.empty() && text[0] >= '0' && text[0] <= '7'; ++i) {
    code = code * 8 + static_cast<uint32_t>(text[0] - '0');
    text.remove_prefix(1);
  }
  return static_cast<char>(code);
}

// Takes what follows a backslash.
bool AppendEscape(std::string_view& text, std::string& out) {
  if (text.empty()) return false;
  if (text[0] >= '0' && text[0] <= '7') {
    out.push_back(Octal(text));
    return true;
  }
  const char kind = text[0];
  text.remove_prefix(1);
  if (kind == 'x') {
    const std::optional<uint32_t> code = Hexadecimal(text, 2);
    if (!code.has_value()) return false;
    text.remove_prefix(2);
    out.push_back(static_cast<char>(*code));
    return true;
  }
  constexpr std::string_view kLetters = "\\'\"abfnrtv";
  constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
  const size_t letter = kLetters.find(kind);
  if (letter == std::string_view::npos) out.push_back('\\');
  out.push_back(letter == std::string_view::npos ? kind : kMeanings[letter]);
  return true;
}

}  // namespace

std::optional<std::string> EscapeSurrogates(std::string_view text) {
  std::string out;
  for (;;) {
    const size_t valid = ValidUtf8Prefix(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) return out;
    const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
    const bool is_surrogate = text.size() >= 3 && byte(0) == 0xed && byte(1) >= 0xa0 &&
                              byte(1) <= 0xbf && byte(2) >= 0x80 && byte(2) <= 0xbf;
    if (!is_surrogate) return std::nullopt;
    AppendCode(0xd000 | ((byte(1) & 0x3fu) << 6) | (byte(2) & 0x3fu), out);
    text.remove_prefix(3);
  }
}

std::optional<std::string> RawUnicode(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const char first = text[0];
    text.remove_prefix(1);
    if (first != '\\' || text.empty()) {
      AppendCode(static_cast<uint8_t>(first), out);
      continue;
    }
    const size_t digits = text[0] == 'u' ? 4 : text[0] == 'U' ? 8 : 0;
    if (digits == 0) {
      // A second backslash belongs to the first one.
      out.push_back('\\');
      AppendCode(static_cast<uint8_t>(text[0]), out);
      text.remove_prefix(1);
      continue;
    }
    const std::optional<uint32_t> code = Hexadecimal(text.substr(1), digits);
    if (!code.has_value() || !AppendCode(*code, out)) return std::nullopt;
    text.remove_prefix(1 + digits);
  }
  return out;
}

std::optional<std::string> QuotedLiteral(std::string_view text) {
  const bool is_quoted =
      text.size() >= 2 && (text[0] == '\'' || text[0] == '"') && text.back() == text[0];
  if (!is_quoted) return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::string out;
  while (!text.empty()) {
    const char first = text[0];
    text.remove_prefix(1);
    if (first != '\\') {
      out.push_back(first);
    } else if (!AppendEscape(text, out)) {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<std::string> Latin1(std::string_view utf8) {
  std::string out;
  out.reserve(utf8.size());
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto first = static_cast<uint8_t>(utf8[i]);
    if (first < 0x80) {
      out.push_back(utf8[i]);
    } else if (first <= 0xc3 && i + 1 < utf8.size()) {
      ++i;
      out.push_back(static_cast<char>(((first & 0x03) << 6) | (utf8[i] & 0x3f)));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace ckptd::pickle
