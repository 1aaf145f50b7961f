#include "client/cli/local_ranks.h"

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace ckptd::cli {
namespace {

// The rank of "rank-3.sock" and "rank-3.admin.sock".
std::optional<uint32_t> RankOfSocket(const std::string& name) {
  constexpr std::string_view kStart = "rank-";
  if (name.rfind(kStart, 0) != 0) return std::nullopt;
  uint32_t rank = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kStart.size(), end, rank);
  const std::string_view rest(parsed.ptr, static_cast<size_t>(end - parsed.ptr));
  if (parsed.ec != std::errc() || (rest != ".sock" && rest != ".admin.sock")) return std::nullopt;
  return rank;
}

}  // namespace

std::set<uint32_t> RanksIn(const std::filesystem::path& folder) {
  std::set<uint32_t> ranks;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (const auto rank = RankOfSocket(at->path().filename().string())) ranks.insert(*rank);
  }
  return ranks;
}

}  // namespace ckptd::cli
