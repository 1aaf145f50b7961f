#include "common/source/hub_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>

#include "common/base/percent.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHub = "hf://";
constexpr size_t kMaxCommitBytes = 200;

struct HubName {
  std::string repo;  // "org/name", or "name"
  std::string revision = "main";
  std::string file;  // inside of it, with a slash in front; may be empty
};

bool IsExisting(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// As huggingface_hub finds it.
std::string CacheFolder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (std::string folder = Environment(name); !folder.empty()) return folder;
  }
  if (const std::string home = Environment("HF_HOME"); !home.empty()) return home + "/hub";
  std::string cache = Environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = Environment("HOME") + "/.cache";
  return cache + "/huggingface/hub";
}

bool IsNameOfFile(std::string_view text) {
  constexpr std::string_view kFiles[] = {".safetensors", ".json", ".bin", ".pt",
                                         ".pth",         ".ckpt", ".gguf"};
  return std::any_of(std::begin(kFiles), std::end(kFiles),
                     [text](std::string_view end) { return text.ends_with(end); });
}

bool IsPartOfName(std::string_view part) {
  return !part.empty() && part.front() != '.' && std::all_of(part.begin(), part.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
}

// Where the revision ends that `text` begins with: at the first slash, but for refs/pr/N and
// refs/convert/NAME, as huggingface_hub has it. Other slashes of a revision are written %2F.
size_t EndOfRevision(std::string_view text) {
  size_t begin = 0;
  for (const std::string_view refs : {"refs/pr/", "refs/convert/"}) {
    if (text.starts_with(refs)) begin = refs.size();
  }
  return std::min(text.find('/', begin), text.size());
}

// `text` without its scheme; nothing where it is no name of a model.
std::optional<HubName> ParseName(std::string_view text) {
  HubName out;
  const size_t at = text.find('@');
  std::string_view repo = text.substr(0, at);
  std::string_view rest;
  if (at != std::string_view::npos) {
    const std::string_view behind = text.substr(at + 1);
    const size_t end = EndOfRevision(behind);
    out.revision = PercentDecoded(behind.substr(0, end));
    rest = behind.substr(end);
  } else {
    const size_t org = repo.find('/');
    const size_t end = org == std::string_view::npos ? org : repo.find('/', org + 1);
    rest = repo.substr(std::min(end, repo.size()));
    repo = repo.substr(0, end);
  }
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t slash = repo.find('/');
  const bool good = slash == std::string_view::npos
                        ? IsPartOfName(repo)
                        : IsPartOfName(repo.substr(0, slash)) && IsPartOfName(repo.substr(slash + 1));
  const bool inside = out.revision.find("..") == std::string::npos && rest.find("..") == rest.npos;
  if (!good || !inside || out.revision.empty()) return std::nullopt;
  out.repo = repo;
  out.file = rest;
  return out;
}

absl::Status NotCached(const std::string& text, const HubName& name, std::string_view why) {
  return MakeError(
      absl::StatusCode::kNotFound, reason::kSourceNotFound,
      fmt::format("opening {}: there is no such path, and as a model of the Hugging Face hub {} in "
                  "the cache {}; download it first (`hf download {} --revision {}`), or set HF_HOME",
                  text, why, CacheFolder(), name.repo, name.revision),
      {{"file", text}});
}

absl::StatusOr<std::string> PathInCache(const std::string& text, const HubName& name) {
  std::string folder = name.repo;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) {
    folder.replace(slash, 1, "--");
  }
  folder = CacheFolder() + "/models--" + folder;
  if (!IsExisting(folder)) return NotCached(text, name, "it is not");
  std::string commit = name.revision;
  const auto ref = ReadSmallFile(folder + "/refs/" + name.revision, kMaxCommitBytes);
  if (ref.ok()) commit = ref->substr(0, ref->find_first_of(" \r\n"));
  const std::string snapshot = folder + "/snapshots/" + commit;
  const bool inside = !commit.empty() && commit.find('/') == std::string::npos && commit != "..";
  if (!inside || !IsExisting(snapshot)) {
    const std::string_view slash =
        name.file.empty() ? "" : " (a slash inside of a revision is written %2F)";
    return NotCached(text, name,
                     fmt::format("its revision {} is not{}", Quoted(name.revision), slash));
  }
  return snapshot + name.file;
}

}  // namespace

absl::Status CheckScheme(std::string_view text) {
  const size_t end = text.find("://");
  const std::string_view scheme = text.substr(0, end);
  const bool is_scheme = end != std::string_view::npos && end > 1 &&
                         std::all_of(scheme.begin(), scheme.end(), [](char c) {
                           return std::isalnum(static_cast<unsigned char>(c)) != 0;
                         });
  if (!is_scheme || scheme == "file") return absl::OkStatus();
  const std::string_view what_to_try =
      scheme == "hf" ? "write hf://ORG/NAME, hf://ORG/NAME@REVISION or the path of a snapshot"
                     : "copy it to a local or mounted folder and name that";
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("opening {}: sources of {}:// are not read; {}", text, scheme,
                               what_to_try),
                   {{"file", std::string(text)}});
}

absl::StatusOr<std::string> PathOfName(const std::string& text) {
  if (text.starts_with(kHub)) {
    const auto name = ParseName(std::string_view(text).substr(kHub.size()));
    if (!name.has_value()) return CheckScheme(text);
    return PathInCache(text, *name);
  }
  CKPTD_RETURN_IF_ERROR(CheckScheme(text));
  const auto name = IsNameOfFile(text) ? std::nullopt : ParseName(text);
  if (!name.has_value() || !name->file.empty() || IsExisting(text)) return text;
  absl::StatusOr<std::string> path = PathInCache(text, *name);
  // "folder/mistyped" is no model's name, nor is "mistyped".
  const size_t slash = name->repo.find('/');
  const bool is_path = slash == std::string::npos || IsExisting(name->repo.substr(0, slash));
  return path.ok() || !is_path ? path : text;
}

}  // namespace ckptd
