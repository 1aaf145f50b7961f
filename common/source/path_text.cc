#include "common/source/path_text.h"

#include <algorithm>
#include <cstddef>

#include "common/base/percent.h"
#include "common/base/utf8.h"

namespace ckptd {
namespace {

constexpr std::string_view kScheme = "file://";  // of no host

}  // namespace

std::string TextOfPath(std::string_view path) {
  if (ValidUtf8Prefix(path) == path.size()) return std::string(path);
  return std::string(kScheme) + PercentEncoded(path);
}

std::string PathOfText(std::string_view text) {
  if (!text.starts_with(kScheme)) return std::string(text);
  const std::string_view path = text.substr(kScheme.size());
  return path.starts_with('/') ? PercentDecoded(path) : std::string(text);
}

std::string SourceOfText(std::string_view text) {
  const std::string path = PathOfText(text);
  std::string clean;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = std::string_view(path).substr(begin, end - begin);
    begin = end + 1;
    if (part.empty() || part == ".") continue;
    if (!clean.empty() || path.starts_with('/')) clean += '/';
    clean += part;
  }
  if (!clean.empty() || path.empty()) return clean;
  return path.starts_with('/') ? "/" : ".";
}

}  // namespace ckptd
