#include "client/cli/device_map.h"

#include <fmt/format.h>

#include "client/cli/exit_codes.h"
#include "client/cli/json_views.h"
#include "client/cli/offline.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cpp/client.h"
#include "common/base/status.h"
#include "common/source/open.h"

namespace ckptd::cli {
namespace {

DeviceMapWay ToWay(const std::string& name) {
  if (name == "sequential") return DeviceMapWay::kSequential;
  if (name == "balanced") return DeviceMapWay::kBalanced;
  return name == "balanced_low_0" ? DeviceMapWay::kBalancedLowZero : DeviceMapWay::kAuto;
}

absl::StatusOr<std::map<std::string, std::string>> ToTied(const std::vector<std::string>& pairs) {
  std::map<std::string, std::string> out;
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == pair.npos || equals == 0 || equals + 1 == pair.size()) {
      return UsageError(fmt::format("reading --tied {}: it is no pair of names; write it as in "
                                    "lm_head.weight=model.embed_tokens.weight",
                                    pair));
    }
    out[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return out;
}

absl::StatusOr<DeviceMap> PlanHere(const DeviceMapRequest& request,
                                   std::vector<DeviceLimit> max_memory) {
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint opened, OpenNamed(request.source));
  CKPTD_ASSIGN_OR_RETURN(
      const ModuleTree tree,
      ModuleTree::Make(opened.index, {request.dtype_policy, request.tied, request.order}));
  return PlanDeviceMap(tree, {request.way, std::move(max_memory), request.no_split});
}

absl::StatusOr<DeviceMap> PlanRemote(DeviceMapRequest request, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(request.source, AbsolutePath(request.source));
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  return client.Plan(request);
}

void PrintMap(const DeviceMap& map, std::ostream& out) {
  PrintFields({{"model", HumanBytes(map.total_bytes)},
               {"largest layer", HumanBytes(map.largest_layer_bytes)}},
              out);
  Table devices({{"DEVICE"}, {"LIMIT", Table::Align::kRight}, {"PLACED", Table::Align::kRight}});
  for (const PlacedDevice& device : map.devices) {
    const bool limited = device.device != "disk";
    devices.AddRow({device.device, limited ? HumanBytes(device.limit_bytes) : "-",
                    HumanBytes(device.placed_bytes)});
  }
  out << '\n';
  devices.Print(out);
  Table modules({{"MODULE"}, {"DEVICE"}, {"SIZE", Table::Align::kRight}});
  for (const PlacedModule& module : map.modules) {
    modules.AddRow({module.name.empty() ? "(all)" : module.name, module.device,
                    HumanBytes(module.bytes)});
  }
  out << '\n';
  modules.Print(out);
}

}  // namespace

void AddDeviceMapOptions(CLI::App& verb, DeviceMapArguments& arguments) {
  CLI::Option* const way =
      verb.add_option("--device-map", arguments.way,
                      "Instead of ranks: the devices of one process, as accelerate plans them")
          ->check(CLI::IsMember({"auto", "balanced", "balanced_low_0", "sequential"}));
  CLI::Option* const max_memory =
      verb.add_option("--max-memory", arguments.max_memory,
                      "Of each device, such as 0=20GiB,1=20GiB,cpu=100GiB; the rest goes to disk")
          ->type_name("DEVICE=SIZE,...")
          ->needs(way);
  way->needs(max_memory);
  const auto list = [&](const char* name, std::vector<std::string>& to, const char* help,
                        const char* type) {
    verb.add_option(name, to, help)->type_name(type)->allow_extra_args(false)->needs(way);
  };
  list("--no-split", arguments.no_split,
       "Modules that stay on one device, such as 'model.layers.*'; may be given again", "GLOB");
  list("--order", arguments.order,
       "Modules first to last, where names do not tell; may be given again", "GLOB");
  list("--tied", arguments.tied,
       "A further name of a tensor, such as lm_head.weight=model.embed_tokens.weight; may be given "
       "again",
       "NAME=NAME");
}

absl::StatusOr<int> RunDeviceMap(const std::string& source, const DtypePolicy& dtypes, bool remote,
                                 const DeviceMapArguments& arguments, Context& context) {
  auto max_memory = ParseMaxMemory(arguments.max_memory);
  if (!max_memory.ok()) return UsageError(MessageOf(max_memory.status()));
  DeviceMapRequest request;
  request.source = source;
  request.dtype_policy = dtypes;
  request.way = ToWay(arguments.way);
  request.max_memory = arguments.max_memory;
  request.no_split = arguments.no_split;
  request.order = arguments.order;
  CKPTD_ASSIGN_OR_RETURN(request.tied, ToTied(arguments.tied));
  CKPTD_ASSIGN_OR_RETURN(const DeviceMap map, remote ? PlanRemote(std::move(request), context)
                                                     : PlanHere(request, *std::move(max_memory)));
  if (context.json()) {
    context.io.out << ToJson(map) << '\n';
  } else {
    PrintMap(map, context.io.out);
    for (const std::string& warning : map.warnings) context.Note("warning: " + warning);
  }
  return kExitFine;
}

}  // namespace ckptd::cli
