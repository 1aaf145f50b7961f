#include "client/cli/device_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>

#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/output.pb.h"
#include "client/cli/remarks.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cpp/client.h"
#include "common/base/status.h"
#include "common/devices/device_map.h"
#include "common/source/open.h"
#include "common/wire/layout.h"
#include "common/wire/plan.h"

namespace ckptd::cli {
namespace {

struct Way {
  const char* name;
  DeviceMapWay here;
  v1::DeviceMapRules::Way remote;
};
constexpr Way kWays[] = {
    {"auto", DeviceMapWay::kAuto, v1::DeviceMapRules::WAY_BALANCED},
    {"balanced", DeviceMapWay::kBalanced, v1::DeviceMapRules::WAY_BALANCED},
    {"balanced_low_0", DeviceMapWay::kBalancedLowZero, v1::DeviceMapRules::WAY_BALANCED_LOW_0},
    {"sequential", DeviceMapWay::kSequential, v1::DeviceMapRules::WAY_SEQUENTIAL},
};

const Way& WayOf(const std::string& name) {
  return *std::find_if(std::begin(kWays), std::end(kWays),
                       [&name](const Way& way) { return name == way.name; });
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

absl::StatusOr<v1::DeviceMap> PlanHere(const std::string& source, const DtypePolicy& dtypes,
                                       const std::map<std::string, std::string>& tied,
                                       const DeviceMapArguments& arguments, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(auto max_memory, ParseMaxMemory(arguments.max_memory));
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint opened, OpenNamed(source));
  CKPTD_ASSIGN_OR_RETURN(const ModuleTree tree,
                         ModuleTree::Make(opened.index, {dtypes, tied, arguments.order}));
  CKPTD_ASSIGN_OR_RETURN(const DeviceMap map,
                         PlanDeviceMap(tree, {WayOf(arguments.way).here, std::move(max_memory),
                                              arguments.no_split}));
  NoteRemarks(opened.remarks, context);
  return ToProto(map);
}

absl::StatusOr<v1::DeviceMap> PlanRemote(const std::string& source, const DtypePolicy& dtypes,
                                         const std::map<std::string, std::string>& tied,
                                         const DeviceMapArguments& arguments, Context& context) {
  v1::PlanLoadRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_spec()->mutable_source(), AbsolutePath(source));
  *request.mutable_spec()->mutable_dtype_policy() = ToProto(dtypes);
  v1::DeviceMapRules& rules = *request.mutable_device_map();
  rules.set_way(WayOf(arguments.way).remote);
  rules.set_max_memory(arguments.max_memory);
  rules.mutable_no_split()->Add(arguments.no_split.begin(), arguments.no_split.end());
  rules.mutable_order()->Add(arguments.order.begin(), arguments.order.end());
  rules.mutable_tied()->insert(tied.begin(), tied.end());
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  return client.PlanDevices(request);
}

DeviceMapOutput ToOutput(const v1::DeviceMap& map) {
  DeviceMapOutput out;
  for (const v1::DeviceMap::Module& module : map.modules()) {
    google::protobuf::Value& device = (*out.mutable_device_map())[module.name()];
    if (module.device() == "cpu" || module.device() == "disk") {
      device.set_string_value(module.device());
    } else {
      device.set_number_value(std::strtod(module.device().c_str(), nullptr));
    }
  }
  *out.mutable_plan() = map;
  return out;
}

void PrintMap(const v1::DeviceMap& map, std::ostream& out) {
  PrintFields({{"model", HumanBytes(map.total_bytes())},
               {"largest layer", HumanBytes(map.largest_layer_bytes())}},
              out);
  Table devices({{"DEVICE"}, {"LIMIT", Table::Align::kRight}, {"PLACED", Table::Align::kRight}});
  for (const v1::DeviceMap::Device& device : map.devices()) {
    const bool limited = device.device() != "disk";
    devices.AddRow({device.device(), limited ? HumanBytes(device.limit_bytes()) : "-",
                    HumanBytes(device.placed_bytes())});
  }
  out << '\n';
  devices.Print(out);
  Table modules({{"MODULE"}, {"DEVICE"}, {"SIZE", Table::Align::kRight}});
  for (const v1::DeviceMap::Module& module : map.modules()) {
    modules.AddRow({module.name().empty() ? "(all)" : module.name(), module.device(),
                    HumanBytes(module.bytes())});
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
  const auto max_memory = ParseMaxMemory(arguments.max_memory);
  if (!max_memory.ok()) return UsageError(MessageOf(max_memory.status()));
  CKPTD_ASSIGN_OR_RETURN(const auto tied, ToTied(arguments.tied));
  CKPTD_ASSIGN_OR_RETURN(const v1::DeviceMap map,
                         remote ? PlanRemote(source, dtypes, tied, arguments, context)
                                : PlanHere(source, dtypes, tied, arguments, context));
  if (context.json()) {
    CKPTD_RETURN_IF_ERROR(PrintJson(ToOutput(map), context.io.out));
  } else {
    PrintMap(map, context.io.out);
    for (const std::string& warning : map.warnings()) context.Note("warning: " + warning);
  }
  return kExitFine;
}

}  // namespace ckptd::cli
