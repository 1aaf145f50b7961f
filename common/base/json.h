// JSON: foreign text, read with RapidJSON, and strings to write. The packaged RapidJSON 1.1.0 alone
// is not safe for it: it stops at a NUL, takes half of a surrogate pair for a character, and
// computes some exponents outside of its tables.
#ifndef CKPTD_COMMON_BASE_JSON_H_
#define CKPTD_COMMON_BASE_JSON_H_

#include <rapidjson/fwd.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ckptd {

// Ours: RapidJSON needs 8 bytes of memory for each level.
inline constexpr size_t kMaxJsonDepth = 1000;

// Which numbers are taken. RapidJSON reads those right that have at most 24 characters and two
// digits of exponent.
enum class JsonNumbers {
  kExact,   // those, and no others
  kOfKind,  // all that a double can hold: in place of others the handler gets some of their kind
};

// Puts `text` right for RapidJSON; positions stay. What RapidJSON would take and must not becomes a
// character that JSON does not have, so that faults are found in their order. A byte order mark
// becomes white space.
void PrepareJson(std::string& text, JsonNumbers numbers);

// Calls RapidJSON's `handler` for what `text` holds. Keys may repeat. Needs no stack. Returns where
// `text` is not JSON, or where the handler returned false.
template <unsigned kFlags = 0, typename Handler>
std::optional<size_t> ReadJson(std::string text, JsonNumbers numbers, Handler& handler) {
  PrepareJson(text, numbers);
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  constexpr unsigned kAlways =
      rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag;
  if (reader.Parse<kAlways | kFlags>(stream, handler)) return std::nullopt;
  return reader.GetErrorOffset();
}

// Reads all of `text`. Returns where it is not JSON; `out` is null then.
std::optional<size_t> ParseJson(std::string_view text, JsonNumbers numbers,
                                rapidjson::Document& out);

// JSON text with an escape for every character beyond ASCII, which stands in strings only. Bytes
// that are not UTF-8 become U+FFFD.
std::string ToAsciiJson(std::string_view json);

enum class JsonCharacters { kUtf8, kAscii };

// `text` as a string of JSON, quotes included. Bytes that are not UTF-8 become U+FFFD.
std::string JsonString(std::string_view text, JsonCharacters characters);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_JSON_H_
