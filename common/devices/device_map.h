// Plans which device each module of a big model goes to, from the checkpoint alone. The rules and
// results are those of accelerate's get_balanced_memory and infer_auto_device_map (version 1.15).
// Patterns of names take the place of the classes that must not be split. What a checkpoint does
// not contain is not planned: modules without tensors, and buffers that are not persistent. Pure.
#ifndef CKPTD_COMMON_DEVICES_DEVICE_MAP_H_
#define CKPTD_COMMON_DEVICES_DEVICE_MAP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/devices/module_tree.h"

namespace ckptd {

// "0", "1", ... are GPUs. The others are "cpu" and "disk".
struct DeviceLimit {
  std::string device;
  // May be negative: the memory minus the largest layer.
  int64_t bits = 0;
  bool is_gpu() const { return device != "cpu" && device != "disk"; }
};

// kAuto means kBalanced, as in accelerate. kBalancedLowZero leaves GPU 0 as empty as possible.
enum class DeviceMapWay : uint8_t { kAuto, kBalanced, kBalancedLowZero, kSequential };

struct DeviceMapOptions {
  DeviceMapWay way = DeviceMapWay::kAuto;
  std::vector<DeviceLimit> max_memory;  // result of ParseMaxMemory
  std::vector<std::string> no_split;    // globs of modules that must not be split
};

struct PlacedModule {
  std::string name;  // name of a module or tensor; empty for the whole model
  std::string device;
  uint64_t bytes = 0;  // rounded up
};

struct PlacedDevice {
  std::string device;
  uint64_t limit_bytes = 0;   // the limit used for planning; 0 for "disk": no limit
  uint64_t placed_bytes = 0;  // rounded up
};

struct DeviceMap {
  std::vector<PlacedModule> modules;  // in the order of the tree
  std::vector<PlacedDevice> devices;  // all devices, also empty ones
  uint64_t total_bytes = 0;           // rounded up
  uint64_t largest_layer_bytes = 0;   // of the modules that cannot be split
  std::vector<std::string> warnings;  // for people: patterns that match nothing
};

// Parses "0=20GiB,1=20GiB,cpu=100GiB": GPUs ascending, then "cpu", then "disk", which is added if
// it is not named and has no limit. Units as in accelerate: GiB, MiB, KiB, GB, MB and KB ("Gb"
// are bits), or plain bytes. Errors: InvalidArgument INVALID_REQUEST.
absl::StatusOr<std::vector<DeviceLimit>> ParseMaxMemory(const std::string& text);

// get_balanced_memory for a max_memory that the user gave. Errors: InvalidArgument
// INVALID_REQUEST for kBalancedLowZero if GPUs are not numbered from 0 on without gaps.
absl::StatusOr<std::vector<DeviceLimit>> BalanceMemory(const ModuleTree& tree,
                                                       const DeviceMapOptions& options);

// infer_auto_device_map. Errors: those above; InvalidArgument INVALID_REQUEST for ties that
// accelerate cannot plan either (with a tensor in no module, or in a part of one).
absl::StatusOr<DeviceMap> PlanDeviceMap(const ModuleTree& tree, const DeviceMapOptions& options);

}  // namespace ckptd

#endif  // CKPTD_COMMON_DEVICES_DEVICE_MAP_H_
