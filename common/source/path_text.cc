#include "common/source/path_text.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <filesystem>

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

SourceName SplitPart(std::string_view source) {
  const size_t at = source.rfind('#');
  const std::string_view part = at == std::string_view::npos ? "" : source.substr(at + 1);
  const bool names_one = !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  });
  if (!names_one) return {std::string(source), ""};
  std::string_view path = source.substr(0, at);
  // As a shell completes the name of a folder.
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return {std::string(path), std::string(part)};
}

std::string JoinPart(const std::string& path, std::string_view part) {
  return part.empty() ? path : path + "#" + std::string(part);
}

std::string_view WhyUnsafe(std::string_view name) {
  if (name.find('\0') != std::string_view::npos) return "whose name contains NUL";
  if (name.starts_with('/') || name.starts_with('\\')) return "an absolute path";
  if (name.size() >= 2 && name[1] == ':' && std::isalpha(static_cast<unsigned char>(name[0]))) {
    return "a path with a drive";
  }
  std::string slashes(name);
  std::replace(slashes.begin(), slashes.end(), '\\', '/');
  for (const auto& part : std::filesystem::path(slashes)) {
    if (part == "..") return "a path with \"..\"";
  }
  return {};
}

}  // namespace ckptd
