#include "server/comm/nccl/environment.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace ckptd {
namespace {

constexpr std::string_view kTheirs = "NCCL_";
constexpr std::string_view kOurs = "CKPTD_NCCL_";
// The variable with the library's path.
constexpr std::string_view kSetting = "CKPTD_NCCL_LIBRARY";

// Variables that describe the machine: the links between its GPUs and to other hosts.
// NCCL_DEBUG_FILE is not among them, because the trainer's NCCL writes that file.
constexpr std::string_view kAllowed[] = {
    "NCCL_CONF_FILE",         "NCCL_CUMEM_ENABLE",
    "NCCL_CUMEM_HOST_ENABLE", "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",      "NCCL_IGNORE_CPU_AFFINITY",
    "NCCL_MNNVL_ENABLE",      "NCCL_NET",
    "NCCL_NET_GDR_LEVEL",     "NCCL_NET_PLUGIN",
    "NCCL_OOB_NET_ENABLE",    "NCCL_OOB_NET_IFNAME",
    "NCCL_P2P_DISABLE",       "NCCL_P2P_LEVEL",
    "NCCL_PXN_DISABLE",       "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_FAMILY",     "NCCL_SOCKET_IFNAME",
    "NCCL_TOPO_FILE",
};
constexpr std::string_view kAllowedFamily = "NCCL_IB_";

bool Starts(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool Allowed(std::string_view name) {
  return Starts(name, kAllowedFamily) ||
         std::find(std::begin(kAllowed), std::end(kAllowed), name) != std::end(kAllowed);
}

}  // namespace

std::string NcclEnvironment::Text() const {
  std::string text = "set";
  for (const auto& [name, value] : set) text += fmt::format(" {}={}", name, value);
  text += "; kept";
  for (const auto& [name, value] : kept) text += fmt::format(" {}={}", name, value);
  if (kept.empty()) text += " nothing";
  text += "; dropped";
  for (const std::string& name : dropped) text += " " + name;
  if (dropped.empty()) text += " nothing";
  return text;
}

NcclEnvironment CleanNcclEnvironment(const char* const* environment) {
  NcclEnvironment clean;
  clean.set = {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
               {"NCCL_NVLS_ENABLE", "0"},
               {"NCCL_RAS_ENABLE", "0"}};
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view name = entry.substr(0, equals);
    const std::string value(entry.substr(std::min(equals + 1, entry.size())));
    if (Starts(name, kOurs) && name.size() > kOurs.size() && name != kSetting) {
      clean.set[std::string(name.substr(kOurs.size() - kTheirs.size()))] = value;
    } else if (Starts(name, kTheirs) && Allowed(name)) {
      clean.kept[std::string(name)] = value;
    } else if (Starts(name, kTheirs)) {
      clean.dropped.emplace_back(name);
    }
  }
  clean.set["NCCL_COMM_BLOCKING"] = "0";
  for (const auto& [name, value] : clean.set) clean.kept.erase(name);
  std::erase_if(clean.dropped, [&](const std::string& name) { return clean.set.count(name) != 0; });
  std::sort(clean.dropped.begin(), clean.dropped.end());
  return clean;
}

void ApplyNcclEnvironment(const NcclEnvironment& environment) {
  for (const std::string& name : environment.dropped) ::unsetenv(name.c_str());
  for (const auto& [name, value] : environment.set) ::setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace ckptd
