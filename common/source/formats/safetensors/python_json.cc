#include "common/source/formats/safetensors/python_json.h"

#include <cctype>

namespace ckptd {
namespace {

bool IsWordPart(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The length of a number at `at` that JSON does not have; 0: there is none.
size_t SpecialNumber(std::string_view text, size_t at) {
  if (at > 0 && IsWordPart(text[at - 1])) return 0;
  for (const std::string_view word : {"NaN", "Infinity"}) {
    if (!text.substr(at).starts_with(word)) continue;
    const size_t end = at + word.size();
    return end < text.size() && IsWordPart(text[end]) ? 0 : word.size();
  }
  return 0;
}

}  // namespace

std::string StrictJson(std::string_view text) {
  std::string out(text);
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (in_string && text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      in_string = !in_string;
    } else if (!in_string && (text[at] == 'N' || text[at] == 'I')) {
      const size_t length = SpecialNumber(text, at);
      if (length == 0) continue;
      out.replace(at, length, length, ' ');
      out[at] = '0';
      at += length - 1;
    }
  }
  return out;
}

}  // namespace ckptd
