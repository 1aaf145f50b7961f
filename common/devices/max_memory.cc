// Memory limits of devices: parsing of user input, and balancing over the GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/devices/device_map.h"
#include "common/layout/glob.h"

namespace ckptd {
namespace {

constexpr size_t kMaxDevices = 1024;
constexpr double kMaxBytes = 1e17;  // far above any machine's; its bits fit 64

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {{"GIB", 1u << 30}, {"MIB", 1u << 20}, {"KIB", 1u << 10},
                           {"GB", 1e9},       {"MB", 1e6},       {"KB", 1e3}};

absl::Status Refuse(std::string_view text, std::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("reading the memory of devices: \"{}\" {}; write it as in "
                               "0=20GiB,1=20GiB,cpu=100GiB",
                               text.substr(0, 80), why));
}

// As accelerate's convert_file_size_to_int.
std::optional<int64_t> ParseSize(std::string_view text) {
  double factor = 1;
  bool of_bits = false;
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const Unit& unit : kUnits) {
    if (!std::string_view(upper).ends_with(unit.name)) continue;
    of_bits = unit.name.size() == 2 && text.back() == 'b';
    factor = unit.bytes;
    text.remove_suffix(unit.name.size());
    break;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  const double bytes = std::trunc(value * factor);
  if (bytes < 0 || bytes > kMaxBytes) return std::nullopt;
  return of_bits ? static_cast<int64_t>(bytes) / 8 : static_cast<int64_t>(bytes);
}

bool IsNumber(std::string_view text) {
  return !text.empty() && text.size() <= 4 && text.find_first_not_of("0123456789") == text.npos &&
         (text.size() == 1 || text[0] != '0');
}

// Orders GPUs by number, then "cpu", then "disk".
bool Before(const DeviceLimit& a, const DeviceLimit& b) {
  if (a.is_gpu() != b.is_gpu()) return a.is_gpu();
  if (a.device.size() != b.device.size()) return a.device.size() < b.device.size();
  return a.device < b.device;
}

// Bits of the largest of the modules that match a pattern first: the first layer of each kind, in
// the order of the tree.
absl::StatusOr<uint64_t> LargestInOnePiece(const ModuleTree& tree,
                                           const std::vector<std::string>& patterns) {
  CountedGlobs globs(patterns);
  uint64_t most = 0;
  for (size_t pattern = 0; pattern < patterns.size(); ++pattern) {
    const auto first = std::find_if(
        tree.nodes.begin() + 1, tree.nodes.end(), [&globs, pattern](const ModuleNode& node) {
          return node.has_size && !node.is_tensor && globs.Matches(pattern, node.name);
        });
    CKPTD_RETURN_IF_ERROR(globs.Check("planning devices"));
    if (first != tree.nodes.end()) most = std::max(most, first->bits);
  }
  return most;
}

// Mean bytes of the modules without submodules.
uint64_t MeanLeaf(const ModuleTree& tree) {
  uint64_t bits = 0;
  uint64_t count = 0;
  for (size_t i = 1; i < tree.nodes.size(); ++i) {
    const ModuleNode& node = tree.nodes[i];
    const bool has_modules =
        std::any_of(node.modules.begin(), node.modules.end(),
                    [&tree](size_t child) { return tree.nodes[child].has_size; });
    if (node.is_tensor || !node.has_size || has_modules) continue;
    bits += node.bits;
    ++count;
  }
  return bits / 8 / std::max<uint64_t>(count, 1);
}

// Limits GPU 0 to the bytes that the other GPUs leave.
absl::Status EmptyFirst(uint64_t total_bits, size_t gpus, std::vector<DeviceLimit>& memory) {
  int64_t others = 0;
  for (size_t i = 0; i < gpus; ++i) {
    if (i >= memory.size() || memory[i].device != std::to_string(i)) {
      return Refuse(fmt::format("{}=", i), "is missing, and balanced_low_0 needs all GPUs from 0 on");
    }
    if (i > 0) others += memory[i].bits;
  }
  const int64_t left = static_cast<int64_t>(total_bits) - others;
  memory[0].bits = std::min(std::max<int64_t>(left, 0), memory[0].bits);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<DeviceLimit>> ParseMaxMemory(const std::string& text) {
  std::vector<DeviceLimit> out;
  std::set<std::string> seen;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = part.find('=');
    const std::string device = part.substr(0, equals);
    if (equals == part.npos || !(IsNumber(device) || device == "cpu" || device == "disk")) {
      return Refuse(part, "names no GPU by its number, cpu or disk");
    }
    const auto bytes = ParseSize(std::string_view(part).substr(equals + 1));
    if (!bytes.has_value()) return Refuse(part, "says no size");
    if (!seen.insert(device).second) return Refuse(part, "is there twice");
    if (seen.size() > kMaxDevices) return Refuse(part, "is one device too many");
    out.push_back({device, *bytes * 8});
  }
  std::sort(out.begin(), out.end(), Before);
  return out;
}

absl::StatusOr<std::vector<DeviceLimit>> BalanceMemory(const ModuleTree& tree,
                                                       const DeviceMapOptions& options) {
  std::vector<DeviceLimit> memory = options.max_memory;
  std::vector<size_t> gpus;
  for (size_t i = 0; i < memory.size(); ++i) {
    if (memory[i].is_gpu() && memory[i].bits > 0) gpus.push_back(i);
  }
  if (gpus.empty()) return memory;
  const bool low_zero = options.way == DeviceMapWay::kBalancedLowZero && gpus.size() > 1;
  const uint64_t total = tree.nodes[0].bits;
  const uint64_t share = total / 8 / (gpus.size() - (low_zero ? 1 : 0));
  // Layers do not divide evenly, so each GPU gets extra room for the largest or a mean layer, and
  // a quarter of it.
  CKPTD_ASSIGN_OR_RETURN(const uint64_t largest, LargestInOnePiece(tree, options.no_split));
  const uint64_t slack = std::max(largest, MeanLeaf(tree) * 8) * 5 / 32;
  const auto per_gpu = static_cast<int64_t>((share + slack) * 8);
  // The last GPU keeps its limit, in case the extra room is too small.
  for (size_t i = 0; i + 1 < gpus.size(); ++i) {
    DeviceLimit& gpu = memory[gpus[i]];
    if (!(low_zero && gpu.device == "0")) gpu.bits = std::min(gpu.bits, per_gpu);
  }
  if (low_zero) CKPTD_RETURN_IF_ERROR(EmptyFirst(total, gpus.size(), memory));
  return memory;
}

}  // namespace ckptd
