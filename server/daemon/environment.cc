#include "server/daemon/environment.h"

#include <charconv>
#include <cstdlib>
#include <initializer_list>

namespace ckptd {
namespace {

std::optional<uint32_t> FirstNumber(const EnvironmentReader& read,
                                    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::optional<std::string> text = read(name);
    if (!text.has_value()) continue;
    uint32_t value = 0;
    // Slurm writes "4(x2)" for 4 tasks on each of 2 nodes. The first number counts.
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error == std::errc() && (end == text->data() + text->size() || *end == '(')) return value;
  }
  return std::nullopt;
}

std::optional<std::string> FirstText(const EnvironmentReader& read,
                                     std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const std::optional<std::string> text = read(name); text.has_value()) return text;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> ReadEnvironment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string FirstHost(const std::string& node_list) {
  std::string host;
  size_t at = 0;
  for (;;) {
    const size_t end = node_list.find_first_of(",[", at);
    host += node_list.substr(at, end - at);
    if (end == std::string::npos || node_list[end] == ',') return host;
    const size_t stop = node_list.find_first_of(",-]", end + 1);
    const size_t close = node_list.find(']', end + 1);
    if (close == std::string::npos) return host;
    host += node_list.substr(end + 1, stop - end - 1);
    at = close + 1;  // names may have several ranges: "rack[1-2]n[3-4]"
  }
}

JobFacts ReadJobFacts(const EnvironmentReader& read) {
  JobFacts facts;
  facts.rank = FirstNumber(read, {"RANK", "SLURM_PROCID"});
  facts.world_size = FirstNumber(read, {"WORLD_SIZE", "SLURM_NTASKS"});
  facts.local_size =
      FirstNumber(read, {"LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE"});
  facts.nodes = FirstNumber(read, {"GROUP_WORLD_SIZE", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"});
  facts.node_rank = FirstNumber(read, {"GROUP_RANK", "SLURM_NODEID"});
  facts.leader = FirstText(read, {"MASTER_ADDR"});
  if (!facts.leader.has_value()) {
    if (const auto list = FirstText(read, {"SLURM_JOB_NODELIST", "SLURM_NODELIST"})) {
      facts.leader = FirstHost(*list);
    }
  }
  facts.job = FirstText(read, {"SLURM_JOB_ID"});
  return facts;
}

}  // namespace ckptd
