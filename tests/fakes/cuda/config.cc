#include "tests/fakes/cuda/config.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/fakes/cuda/config_text.h"

namespace ckptd::fake_cuda {
namespace {

constexpr std::uint64_t kMaxGpus = 64;

bool ApplyToFault(const std::string& key, const std::string& value, Fault& fault) {
  if (key == "role") fault.role = value;
  if (key == "role") return !value.empty();
  if (key == "nth") return Assign(value, fault.nth);
  if (key == "error") return Assign(value, fault.error);
  if (key == "sticky") return Assign(value, fault.sticky);
  if (key == "delay_ms") return Assign(value, fault.delay_ms);
  if (key == "die") return Assign(value, fault.die);
  if (key == "uuid") fault.uuid = ParseUuid(value);
  return key == "uuid" && fault.uuid.has_value();
}

bool AddFault(const std::string& text, Config& config) {
  Fault fault;
  fault.function = ReadFault(text, [&](const std::string& key, const std::string& value) {
    return ApplyToFault(key, value, fault);
  });
  const char* role = std::getenv("CKPTD_FAKE_CUDA_ROLE");
  if (fault.role.empty() || (role != nullptr && fault.role == role)) config.faults.push_back(fault);
  return fault.function.rfind("cu", 0) == 0;
}

// GPU n as it is when nothing is said about it.
Gpu DefaultGpu(std::size_t n) {
  Gpu gpu;
  gpu.name = "Fake GPU " + std::to_string(n);
  gpu.uuid = {0xfa, 0x4e, 0, 0, 0, 0, 0x40, 0, 0x80};
  gpu.uuid.back() = static_cast<unsigned char>(n + 1);
  gpu.bytes = std::uint64_t{1} << 30;
  return gpu;
}

bool SetGpus(const std::string& value, Config& config) {
  const auto count = Number(value);
  if (!count || *count > kMaxGpus) return false;
  config.gpus.clear();
  for (std::size_t n = 0; n < *count; ++n) config.gpus.push_back(DefaultGpu(n));
  return true;
}

// A key with a number behind the dot: uuid.0, name.1, bytes.0, attribute.102.
bool ApplyNumbered(const std::string& key, std::uint64_t n, const std::string& value,
                   Config& config) {
  if (key == "attribute") {
    const auto answer = Number(value);
    if (answer) config.attributes[static_cast<int>(n)] = static_cast<int>(*answer);
    return answer.has_value();
  }
  if (n >= config.gpus.size()) return false;
  if (key == "name") config.gpus[n].name = value;
  if (key == "name") return true;
  if (key == "bytes") return Assign(value, config.gpus[n].bytes);
  const auto uuid = ParseUuid(value);
  if (key == "uuid" && uuid) config.gpus[n].uuid = *uuid;
  return key == "uuid" && uuid.has_value();
}

bool SetBytes(const std::string& value, Config& config) {
  bool good = true;
  for (Gpu& gpu : config.gpus) good = Assign(value, gpu.bytes) && good;
  return good;
}

bool SetCompute(const std::string& value, Config& config) {
  return std::sscanf(value.c_str(), "%d.%d", &config.compute_major, &config.compute_minor) == 2;
}

bool Apply(const std::string& key, const std::string& value, Config& config) {
  const std::size_t dot = key.find('.');
  if (dot != std::string::npos) {
    const auto n = Number(key.substr(dot + 1));
    return n && ApplyNumbered(key.substr(0, dot), *n, value, config);
  }
  if (key == "gpus") return SetGpus(value, config);
  if (key == "bytes") return SetBytes(value, config);
  if (key == "compute") return SetCompute(value, config);
  if (key == "peers") return Assign(value, config.peers);
  if (key == "lazy") return Assign(value, config.lazy);
  if (key == "lazy_ms") return Assign(value, config.lazy_ms);
  if (key == "fill") return Assign(value, config.fill);
  if (key == "recommended_granularity") return Assign(value, config.recommended_granularity);
  if (key == "link_bytes_per_second") return Assign(value, config.link_bytes_per_second);
  if (key == "fault") return AddFault(value, config);
  if (key == "state_dir")
    config.state_dir = value;
  else if (key == "trace")
    config.trace = value;
  else if (key == "twins")
    config.twins.push_back(value);
  else
    return false;
  return !value.empty();
}

// Paths of the file are relative to the file.
void ResolvePaths(const std::filesystem::path& folder, Config& config) {
  const auto resolve = [&](std::string& path) {
    if (!path.empty()) path = (folder / path).string();
  };
  resolve(config.state_dir);
  resolve(config.trace);
  for (std::string& twin : config.twins) resolve(twin);
}

}  // namespace

std::optional<Uuid> ParseUuid(const std::string& text) {
  std::string digits;
  for (const char c : text.rfind("GPU-", 0) == 0 ? text.substr(4) : text) {
    if (c == '-') continue;
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    digits.push_back(c);
  }
  Uuid uuid;
  if (digits.size() != 2 * uuid.size()) return std::nullopt;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    uuid[i] = static_cast<unsigned char>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
  }
  return uuid;
}

std::optional<Config> LoadConfig(std::string& wrong) {
  Config config;
  SetGpus("1", config);
  const char* path = std::getenv("CKPTD_FAKE_CUDA");
  if (path == nullptr || *path == '\0') return config;
  wrong = ReadConfig(path, [&](const std::string& key, const std::string& value) {
    return Apply(key, value, config);
  });
  if (!wrong.empty()) return std::nullopt;
  ResolvePaths(std::filesystem::absolute(path).parent_path(), config);
  return config;
}

}  // namespace ckptd::fake_cuda
