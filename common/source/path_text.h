// Paths as messages hold them: protobuf's strings and JSON are UTF-8, the names
// of files are any bytes.
#ifndef CKPTD_COMMON_SOURCE_PATH_TEXT_H_
#define CKPTD_COMMON_SOURCE_PATH_TEXT_H_

#include <string>
#include <string_view>

namespace ckptd {

// `path`, which is absolute, itself where it is UTF-8; else as a file URI (RFC
// 8089): file:///models/%FF.
std::string TextOfPath(std::string_view path);

// The path that TextOfPath wrote, or that a person wrote as a file:/// URI; any
// other text is a path as it is.
std::string PathOfText(std::string_view text);

// As PathOfText, in one spelling: without "//", "." and a "/" at its end. ".." stays:
// behind a link it is not what its text says.
std::string SourceOfText(std::string_view text);

// The name of a source: a path, and behind "#" which part of it ("/ckpt#optimizer").
struct SourceName {
  std::string path = {};
  std::string part = {};  // empty: none is named
};

// `source` at the last "#" of its last name, where letters, digits, "_", "-" and "." follow; else
// all of it is the path. Whether there is a file of that whole name, the caller sees.
SourceName SplitPart(std::string_view source);
// The opposite.
std::string JoinPart(const std::string& path, std::string_view part);

// Why the name of a file that others wrote cannot be relative to its folder: it could lead out
// of there. Empty: it can. Ends the sentence "it names FILE, ...".
std::string_view WhyUnsafe(std::string_view name);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_PATH_TEXT_H_
