#include "common/devices/device_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/checked_math.h"
#include "common/layout/glob.h"

namespace ckptd {
namespace {

absl::Status TooManyTies() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   "planning devices: there are too many tied tensors, with long names or in "
                   "modules that are split; keep their modules in one piece with --no-split, or "
                   "leave ties out");
}

// Gives modules to devices, one device after the other, and never goes back. The modules that are
// left are a list. Its first module is placed, split, or makes the next device current.
class Placer {
 public:
  // When a module is put back or split, its ties are looked up again. This limit keeps that below
  // a second.
  static constexpr uint64_t kMaxTieLookups = uint64_t{1} << 22;

  Placer(const ModuleTree& tree, const std::vector<std::string>& no_split,
         std::vector<DeviceLimit> memory)
      : tree_(tree), memory_(std::move(memory)), no_split_(no_split), whole_(tree.nodes.size()) {
    for (size_t i = 1; i < tree.nodes.size(); ++i) {
      const ModuleNode& node = tree.nodes[i];
      // Modules without submodules are looked up, too, so that their patterns count as used.
      const bool stays = !node.is_tensor && no_split_.FirstOf(node.name) < no_split_.size();
      whole_[i] = node.modules.empty() || stays;
      positions_[node.name] = i;
      longest_name_ = std::max(longest_name_, node.name.size());
    }
    for (size_t i = 0; i < tree.ties.size(); ++i) {
      for (const std::string& name : tree.ties[i]) NoteTie(i, name);
    }
    is_left_.resize(tree.nodes.size());
    list_position_.resize(tree.nodes.size(), left_.end());
    if (memory_.empty() || memory_.back().device != "disk") memory_.push_back({"disk", 0});
    used_.resize(memory_.size());
    placed_.resize(memory_.size());
  }

  absl::Status Run() {
    CKPTD_RETURN_IF_ERROR(no_split_.Check("planning devices"));
    Unfold(0, left_.begin());
    FindLargest();
    // At first, tensors next to modules count as layers as well.
    for (const size_t tensor : tree_.nodes[0].tensors) {
      if (Bits(tensor) > largest_) removed_layers_.clear();
      largest_ = std::max(largest_, Bits(tensor));
      if (Bits(tensor) == largest_) removed_layers_.insert(tensor);
    }
    largest_layer_ = largest_;
    while (!left_.empty()) CKPTD_RETURN_IF_ERROR(Step());
    return absl::OkStatus();
  }

  // Indexed by tree nodes, in their order.
  const std::map<size_t, size_t>& device_of() const { return device_of_; }
  const std::vector<DeviceLimit>& memory() const { return memory_; }
  const std::vector<int64_t>& placed() const { return placed_; }
  int64_t largest_layer() const { return largest_layer_; }
  const CountedGlobs& no_split() const { return no_split_; }

 private:
  struct Tie {
    std::string name;  // name of the tensor outside
    size_t module;     // the module that has it and is still to be placed
  };

  int64_t Bits(size_t node) const { return static_cast<int64_t>(tree_.nodes[node].bits); }
  bool HasLimit() const { return memory_[device_].device != "disk"; }
  // On the first GPU and on the host, room for the largest layer stays free, because offloaded
  // layers are copied back there for computing.
  bool IsMain() const {
    return memory_[device_].device == "cpu" || (device_ == 0 && memory_[0].is_gpu());
  }

  absl::Status Step() {
    const size_t node = left_.front();
    Take(node);
    removed_layers_.erase(node);
    if (removed_layers_.empty() && (layers_.empty() || layers_.rbegin()->first < largest_)) {
      FindLargest();
    }
    CKPTD_ASSIGN_OR_RETURN(const std::vector<Tie> ties, TiesOf(node));
    int64_t with_ties = Bits(node);
    for (const Tie& tie : ties) with_ties += Bits(tie.module) - Bits(positions_.at(tie.name));
    const int64_t reserved = IsMain() ? largest_ : 0;
    const int64_t limit = memory_[device_].bits - reserved;
    int64_t& used = used_[device_];
    if (!HasLimit() || used + with_ties <= limit) {
      used += with_ties;
      Place(node, ties);
    } else if (!ties.empty() && used + Bits(node) <= limit && TakeTiedApart(node, ties)) {
      return absl::OkStatus();
    } else if (used + Bits(node) >= limit && !whole_[node]) {
      Unfold(node, left_.begin());
      FindLargest();
    } else {
      used += reserved;
      ++device_;
      PutBack(node);
    }
    return absl::OkStatus();
  }

  // A name counts as inside a node if it contains the node's name anywhere, up to a dot, because
  // accelerate searches that way.
  void NoteTie(size_t tie, const std::string& name) {
    const std::string_view text = name;
    for (size_t end = 0; end < text.size(); ++end) {
      end = std::min(text.find('.', end), text.size());
      for (size_t begin = end - std::min(end, longest_name_); begin < end; ++begin) {
        const auto node = positions_.find(text.substr(begin, end - begin));
        if (node != positions_.end()) ties_inside_[node->second].insert(tie);
      }
    }
  }

  // Tied names outside `node` of tensors that are also inside.
  absl::StatusOr<std::vector<Tie>> TiesOf(size_t node) {
    std::vector<Tie> out;
    const auto inside = ties_inside_.find(node);
    if (inside == ties_inside_.end()) return out;
    const std::string own = tree_.nodes[node].name + ".";
    for (const size_t tie : inside->second) {
      for (const std::string& name : tree_.ties[tie]) {
        if (++tie_lookups_ > kMaxTieLookups) return TooManyTies();
        if ((name + ".").find(own) != name.npos) continue;
        CKPTD_ASSIGN_OR_RETURN(const size_t module, LeftModuleOf(node, name));
        out.push_back({name, module});
      }
    }
    return out;
  }

  // The module, among those that are still to be placed, that contains the tensor `name`.
  absl::StatusOr<size_t> LeftModuleOf(size_t node, const std::string& name) const {
    for (size_t end = name.find('.'); end != name.npos; end = name.find('.', end + 1)) {
      const auto module = positions_.find(std::string_view(name).substr(0, end));
      if (module != positions_.end() && is_left_[module->second]) return module->second;
    }
    return Untied(tree_.nodes[node].name, name);
  }

  static absl::Status Untied(const std::string& node, const std::string& name) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("planning devices: {} is tied with {}, which is in no module that "
                                 "is still to be placed, so the two may come apart; name the "
                                 "modules of both with --no-split, or leave the tie out",
                                 node.substr(0, 200), name.substr(0, 200)),
                     {{"tensor", name.substr(0, 200)}});
  }

  void Place(size_t node, const std::vector<Tie>& ties) {
    device_of_[node] = device_;
    placed_[device_] += Bits(node);
    for (const Tie& tie : ties) {
      if (!is_left_[tie.module]) continue;  // it has two of the tensors
      Take(tie.module);
      // It counts as the largest layer until the next search for that.
      for (size_t i = tie.module; i < tree_.nodes[tie.module].end; ++i) {
        const bool is_layer = whole_[i] && !tree_.nodes[i].is_tensor;
        if (is_layer && Bits(i) == largest_) removed_layers_.insert(i);
      }
      device_of_[tie.module] = device_;
      placed_[device_] += Bits(tie.module);
    }
  }

  bool TakeTiedApart(size_t node, const std::vector<Tie>& ties) {
    for (const Tie& tie : ties) {
      if (whole_[tie.module]) continue;
      Unfold(tie.module, Take(tie.module));
      PutBack(node);
      FindLargest();
      return true;
    }
    return false;
  }

  // Puts the tensors and modules of `node` in its place.
  void Unfold(size_t node, std::list<size_t>::iterator before) {
    for (const size_t part : tree_.nodes[node].tensors) Put(part, before);
    for (const size_t part : tree_.nodes[node].modules) Put(part, before);
  }

  void PutBack(size_t node) { Put(node, left_.begin()); }

  void Put(size_t node, std::list<size_t>::iterator before) {
    ForLayers(node, [this](auto layer) { layers_.insert(layer); });
    list_position_[node] = left_.insert(before, node);
    is_left_[node] = true;
  }

  // Removes `node` from the list. Returns the next position.
  std::list<size_t>::iterator Take(size_t node) {
    ForLayers(node, [this](auto layer) { layers_.erase(layer); });
    is_left_[node] = false;
    return left_.erase(list_position_[node]);
  }

  // Visits (bits, node) of the modules from `node` on that cannot be split.
  template <typename Visit>
  void ForLayers(size_t node, Visit visit) const {
    for (size_t i = node; i < tree_.nodes[node].end;) {
      const bool layer = whole_[i] && !tree_.nodes[i].is_tensor;
      if (layer) visit(std::make_pair(Bits(i), i));
      i = layer ? tree_.nodes[i].end : i + 1;
    }
  }

  void FindLargest() {
    removed_layers_.clear();
    largest_ = layers_.empty() ? 0 : layers_.rbegin()->first;
  }

  const ModuleTree& tree_;
  std::vector<DeviceLimit> memory_;
  CountedGlobs no_split_;
  std::vector<bool> whole_;                                 // per node: cannot be split
  std::unordered_map<std::string_view, size_t> positions_;  // of nodes, by name
  size_t longest_name_ = 0;
  uint64_t tie_lookups_ = 0;  // lookups of tied names so far
  // per node: ties with names inside and outside
  std::unordered_map<size_t, std::set<size_t>> ties_inside_;
  std::list<size_t> left_;
  std::vector<bool> is_left_;                       // per node
  std::vector<std::list<size_t>::iterator> list_position_;  // in left_, per node that is left
  std::set<std::pair<int64_t, size_t>> layers_;  // of left_
  std::set<size_t> removed_layers_;  // not in layers_ any more, but still counted
  int64_t largest_ = 0;                          // of layers_ or removed_layers_
  int64_t largest_layer_ = 0;
  size_t device_ = 0;
  std::vector<int64_t> used_;    // per device, including what is kept free
  std::vector<int64_t> placed_;  // per device
  std::map<size_t, size_t> device_of_;
};

// Limits the cost of the search for ties before it begins.
absl::Status CheckTies(const ModuleTree& tree) {
  uint64_t longest = 0;
  for (const ModuleNode& node : tree.nodes) longest = std::max<uint64_t>(longest, node.name.size());
  constexpr uint64_t kMaxSteps = uint64_t{1} << 32;
  constexpr uint64_t kMaxReach = uint64_t{1} << 20;  // avoids overflow below
  uint64_t steps = 0;
  for (const std::vector<std::string>& group : tree.ties) {
    for (const std::string& name : group) {
      const auto levels = static_cast<uint64_t>(std::count(name.begin(), name.end(), '.')) + 1;
      const uint64_t reach = std::min<uint64_t>({name.size(), longest, kMaxReach});
      steps += levels * reach * reach;
      if (steps > kMaxSteps) return TooManyTies();
    }
  }
  return absl::OkStatus();
}

// If a module and everything in it are on one device, joins their entries (accelerate's
// clean_device_map). `entries` belong to nodes after `node`, sorted.
void Join(const ModuleTree& tree, size_t node, std::map<size_t, size_t>& entries) {
  const size_t end = tree.nodes[node].end;
  auto first = entries.upper_bound(node);
  const auto last = entries.lower_bound(end);
  if (first == last) return;
  const size_t device = first->second;
  const bool one = std::all_of(first, last, [device](const auto& e) { return e.second == device; });
  if (one && std::next(first) != last) {
    entries.erase(first, last);
    entries[node] = device;
    return;
  }
  for (const size_t module : tree.nodes[node].modules) Join(tree, module, entries);
}

uint64_t Bytes(int64_t bits) { return CeilDivide(static_cast<uint64_t>(bits), 8); }

}  // namespace

absl::StatusOr<DeviceMap> PlanDeviceMap(const ModuleTree& tree, const DeviceMapOptions& options) {
  CKPTD_RETURN_IF_ERROR(CheckTies(tree));
  std::vector<DeviceLimit> memory = options.max_memory;
  if (options.way != DeviceMapWay::kSequential) {
    CKPTD_ASSIGN_OR_RETURN(memory, BalanceMemory(tree, options));
  }
  Placer placer(tree, options.no_split, std::move(memory));
  CKPTD_RETURN_IF_ERROR(placer.Run());
  DeviceMap out;
  std::map<size_t, size_t> entries = placer.device_of();
  Join(tree, 0, entries);
  for (const auto& [node, device] : entries) {
    out.modules.push_back({tree.nodes[node].name, placer.memory()[device].device,
                           Bytes(static_cast<int64_t>(tree.nodes[node].bits))});
  }
  for (size_t i = 0; i < placer.memory().size(); ++i) {
    const DeviceLimit& device = placer.memory()[i];
    out.devices.push_back(
        {device.device, static_cast<uint64_t>(std::max<int64_t>(device.bits, 0)) / 8,
         Bytes(placer.placed()[i])});
  }
  out.total_bytes = Bytes(static_cast<int64_t>(tree.nodes[0].bits));
  out.largest_layer_bytes = Bytes(placer.largest_layer());
  out.warnings = tree.warnings;
  const std::vector<std::string> unused = placer.no_split().UnusedWarnings("no_split");
  out.warnings.insert(out.warnings.end(), unused.begin(), unused.end());
  return out;
}

}  // namespace ckptd
