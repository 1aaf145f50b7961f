// `ckptctl plan --device-map`: the device for each module of a big model.
#ifndef CKPTD_CLIENT_CLI_DEVICE_MAP_H_
#define CKPTD_CLIENT_CLI_DEVICE_MAP_H_

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/context.h"

namespace ckptd::cli {

// The values of the options with these names.
struct DeviceMapArguments {
  std::string way;
  std::string max_memory;
  std::vector<std::string> no_split;
  std::vector<std::string> order;
  std::vector<std::string> tied;  // NAME=NAME
};

void AddDeviceMapOptions(CLI::App& verb, DeviceMapArguments& arguments);

// Plans from the headers of `source`, here or (`remote`) in the daemon, and prints a table or
// JSON. Returns the exit code. Errors: UsageError's; those of OpenCheckpoint and PlanDeviceMap.
absl::StatusOr<int> RunDeviceMap(const std::string& source, const DtypePolicy& dtypes, bool remote,
                                 const DeviceMapArguments& arguments, Context& context);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_DEVICE_MAP_H_
