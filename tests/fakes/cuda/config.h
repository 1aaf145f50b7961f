// What the fake imitates: GPUs, modes and faults, from the text file that
// CKPTD_FAKE_CUDA names (its keys are in README.md).
#ifndef CKPTD_TESTS_FAKES_CUDA_CONFIG_H_
#define CKPTD_TESTS_FAKES_CUDA_CONFIG_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ckptd::fake_cuda {

using Uuid = std::array<unsigned char, 16>;

// One `fault = FUNCTION key=value ...` line.
struct Fault {
  std::string function;
  std::string role;                  // only in processes of this role; empty: in all
  std::optional<std::uint64_t> nth;  // only this call (from 1); none: every call
  std::optional<int> error;          // answered instead of doing anything
  std::optional<int> sticky;         // answered, and by every later call
  std::uint64_t delay_ms = 0;        // before the call does its work
  std::optional<Uuid> uuid;          // what cuDeviceGetUuid answers instead
  bool die = false;                  // SIGKILL to oneself
};

struct Gpu {
  std::string name;
  Uuid uuid{};
  std::uint64_t bytes = 0;
};

struct Config {
  std::vector<Gpu> gpus;
  int compute_major = 9;
  int compute_minor = 0;
  bool peers = true;                        // cuDeviceCanAccessPeer
  bool lazy = false;                        // queued work waits for who waits for it
  std::optional<std::uint64_t> lazy_ms;     // ... or for a worker that comes so much later
  std::optional<unsigned char> fill;        // what fresh device memory holds; none: zeros
  std::uint64_t recommended_granularity = 0;  // 0: as the minimum
  std::uint64_t link_bytes_per_second = 0;  // host <-> device; 0: no limit
  std::string state_dir;                    // what processes share; empty: nothing
  std::string trace;                        // file; empty: none
  std::vector<std::string> twins;           // libraries with host twins of kernels
  std::map<int, int> attributes;            // device attributes answered otherwise
  std::vector<Fault> faults;                // those of this process's role
};

// The file that CKPTD_FAKE_CUDA names, or the defaults without it; none, and
// `wrong` says why, when a line of it cannot be understood.
std::optional<Config> LoadConfig(std::string& wrong);

// "GPU-12345678-1234-1234-1234-123456789abc", with or without the prefix.
std::optional<Uuid> ParseUuid(const std::string& text);

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_FAKES_CUDA_CONFIG_H_
