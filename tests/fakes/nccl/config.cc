#include "tests/fakes/nccl/config.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "common/base/mutex.h"
#include "tests/fakes/cuda/config_text.h"
#include "tests/fakes/cuda/trace.h"
#include "tests/fakes/nccl/nccl_api.h"

namespace ckptd::fake_nccl {
namespace {

using fake_cuda::Assign;

bool ApplyToFault(const std::string& key, const std::string& value, Fault& fault) {
  if (key == "role") fault.role = value;
  if (key == "role") return !value.empty();
  if (key == "nth") return Assign(value, fault.nth);
  if (key == "rank") return Assign(value, fault.rank);
  if (key == "error") return Assign(value, fault.error);
  if (key == "late") return Assign(value, fault.late);
  if (key == "after_bytes") return Assign(value, fault.after_bytes);
  if (key == "delay_ms") return Assign(value, fault.delay_ms);
  if (key == "hang") return Assign(value, fault.hang);
  return key == "die" && Assign(value, fault.die);
}

bool AddFault(const std::string& text, Config& config) {
  Fault fault;
  fault.function =
      fake_cuda::ReadFault(text, [&](const std::string& key, const std::string& value) {
        return ApplyToFault(key, value, fault);
      });
  const char* role = std::getenv("CKPTD_FAKE_NCCL_ROLE");
  if (fault.role.empty() || (role != nullptr && fault.role == role)) config.faults.push_back(fault);
  return fault.function.rfind("nccl", 0) == 0;
}

bool SetVersion(const std::string& value, Config& config) {
  const auto version = fake_cuda::Number(value);
  if (version) config.version = static_cast<int>(*version);
  return version.has_value();
}

bool Apply(const std::string& key, const std::string& value, Config& config) {
  if (key == "version") return SetVersion(value, config);
  if (key == "deaths_seen") return Assign(value, config.deaths_seen);
  if (key == "link_bytes_per_second") return Assign(value, config.link_bytes_per_second);
  if (key == "connect_ms") return Assign(value, config.connect_ms);
  if (key == "fault") return AddFault(value, config);
  if (key == "interface") config.interface = value;
  if (key == "trace") config.trace = value;
  return (key == "interface" || key == "trace") && !value.empty();
}

Config Load() {
  Config config;
  config.version = NCCL_VERSION_CODE;
  const char* path = std::getenv("CKPTD_FAKE_NCCL");
  if (path == nullptr || *path == '\0') return config;
  const std::string wrong = fake_cuda::ReadConfig(
      path,
      [&](const std::string& key, const std::string& value) { return Apply(key, value, config); });
  if (!wrong.empty()) {
    std::fprintf(stderr, "fake libnccl: %s\n", wrong.c_str());
    std::_Exit(1);
  }
  // The file's paths are relative to it.
  const auto folder = std::filesystem::absolute(path).parent_path();
  if (!config.trace.empty()) config.trace = (folder / config.trace).string();
  fake_cuda::OpenTrace(config.trace);
  return config;
}

struct Counts {
  Mutex mutex;
  std::map<const Fault*, std::uint64_t> calls;
};

Counts& counts() {
  static Counts* const made = new Counts;
  return *made;
}

}  // namespace

const Config& config() {
  static const Config* const loaded = new Config(Load());
  return *loaded;
}

const Fault* NextFault(const char* function, int rank) {
  MutexLock lock(counts().mutex);
  const Fault* hit = nullptr;
  for (const Fault& fault : config().faults) {
    if (fault.function != function || (fault.rank && *fault.rank != rank)) continue;
    const std::uint64_t number = ++counts().calls[&fault];
    if (hit == nullptr && (!fault.nth || *fault.nth == number)) hit = &fault;
  }
  return hit;
}

}  // namespace ckptd::fake_nccl
