// Plans devices for arbitrary names of tensors and wishes of a caller.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "inputs.pb.h"
#include "common/wire/plan.h"
#include "server/rpc/convert.h"
#include "tests/fuzz/message_input.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

// As whoever reads headers leaves it: sorted, each name once, aliases of what is there.
CheckpointIndex IndexOf(const DeviceMapInput& input) {
  CheckpointIndex index;
  std::map<std::string, TensorEntry> tensors;
  for (const DeviceMapInput::Tensor& tensor : input.tensors()) {
    if (tensor.dtype() <= 0 || !v1::Dtype_IsValid(tensor.dtype())) continue;
    TensorEntry entry;
    entry.name = tensor.name();
    entry.dtype = static_cast<Dtype>(tensor.dtype());
    entry.shape.assign(tensor.dims().begin(), tensor.dims().end());
    tensors[tensor.name()] = std::move(entry);
  }
  for (auto& [name, entry] : tensors) index.tensors.push_back(std::move(entry));
  for (const auto& [name, of] : input.aliases()) {
    if (tensors.count(name) == 0 && tensors.count(of) > 0) index.aliases[name] = of;
  }
  return index;
}

// Every tensor is in one entry of the map: its own, or one of a module around it.
void CheckCovered(const ModuleTree& tree, const DeviceMap& map) {
  std::set<std::string> entries;
  for (const PlacedModule& placed : map.modules) {
    Require(entries.insert(placed.name).second, "modules are placed once");
  }
  for (const ModuleNode& node : tree.nodes) {
    if (!node.is_tensor) continue;
    size_t covers = entries.count("") + entries.count(node.name);
    for (size_t end = node.name.find('.'); end != node.name.npos;
         end = node.name.find('.', end + 1)) {
      covers += entries.count(node.name.substr(0, end));
    }
    Require(covers == 1, "each tensor is on one device: " + node.name);
  }
}

void CheckDevices(const ModuleTree& tree, const DeviceMap& map) {
  std::set<std::string> devices;
  for (const PlacedDevice& device : map.devices) {
    Require(devices.insert(device.device).second, "devices are there once");
    const bool limited = device.device != "disk";
    // Tied modules go together, wherever accelerate puts them.
    Require(!limited || !tree.ties.empty() || device.placed_bytes <= device.limit_bytes + 1,
            "no device gets more than it has");
  }
  Require(devices.count("disk") == 1, "what does not fit goes to disk");
  for (const PlacedModule& placed : map.modules) {
    Require(devices.count(placed.device) == 1, "modules are on devices");
    Require(placed.bytes <= map.total_bytes, "no module is larger than all");
  }
}

void FuzzDeviceMap(const DeviceMapInput& input) {
  const auto request = DeviceMapRequestFrom(input.plan());
  if (!request.ok()) return RequireGoodError(request.status());
  const auto tree = ModuleTree::Make(IndexOf(input), request->tree);
  if (!tree.ok()) return RequireGoodError(tree.status());
  const auto map = PlanDeviceMap(*tree, request->devices);
  if (!map.ok()) return RequireGoodError(map.status());
  CheckCovered(*tree, *map);
  CheckDevices(*tree, *map);
  const v1::DeviceMap sent = ToProto(*map);
  Require(static_cast<size_t>(sent.modules_size()) == map->modules.size(), "all modules are told");
}

}  // namespace
}  // namespace ckptd::fuzz

CKPTD_FUZZ_MESSAGE(ckptd::fuzz::DeviceMapInput, ckptd::fuzz::FuzzDeviceMap)
