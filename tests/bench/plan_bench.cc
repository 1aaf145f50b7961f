// Measures planning on one thread, in processor time: everything that is worked out of
// a model of many tensors before the first byte moves. Prints one JSON object.
//
//   plan_bench [TENSORS] [WORLD_SIZE] [scatter]
//
// leader_seconds: the daemon of rank 0, which reads for all: matches the rules, plans
// every rank with its digest, its own shard's table in full, and the first window of
// the transfer (who gets which bytes, the order of reading), as if all ranks were
// elsewhere. The other windows are worked out while bytes move: window_seconds is one of
// `windows`, of window_read_bytes in the files. member_seconds: any other daemon: its own
// table in full, and where each byte that comes belongs. leader_memory_bytes: the most
// that the leader's part took. With `scatter` as third argument also what goes with a
// communicator: scatter_seconds, in which the leader works out all `steps`, who is sent
// what in each, and scatter_member_seconds, the same of one other rank for itself.
#include <fmt/format.h>
#include <time.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/layout/layout.h"
#include "common/plan/group_plan.h"
#include "common/plan/plan.h"
#include "server/transfer/schedule.h"
#include "server/transfer/slab_spans.h"
#include "server/transfer/window.h"

namespace ckptd {
namespace {

class NoSink final : public TransferSink {
 public:
  absl::Status Send(const Frame&) override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }
};

// Layers of a mixture of experts: many tensors, rows that do not divide evenly.
CheckpointIndex ManyTensors(size_t count) {
  constexpr uint64_t kRows = 2047;
  constexpr uint64_t kColumns = 64;
  CheckpointIndex index;
  index.source = "/models/many";
  index.files.resize(1);
  index.tensors.resize(count);
  for (size_t i = 0; i < count; ++i) {
    TensorEntry& tensor = index.tensors[i];
    tensor.name = fmt::format("model.layers.{:03}.mlp.experts.{:03}.up_proj.weight", i / 256,
                              i % 256);
    tensor.dtype = Dtype::kBF16;
    tensor.shape = {kRows, kColumns};
    const uint64_t bytes = kRows * kColumns * 2;
    tensor.pieces.push_back({0, i * bytes, bytes, {{0, 0}, tensor.shape}});
    index.files[0].bytes += bytes;
  }
  return index;
}

// Processor time of this process, which has one thread: what else runs on the machine
// does not count.
class Watch {
 public:
  double Seconds() const { return Now() - start_; }

 private:
  static double Now() {
    timespec now = {};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  const double start_ = Now();
};

// Of this program: what getrusage says includes the process that started it.
uint64_t PeakBytes() {
  constexpr std::string_view kKey = "VmHWM:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kKey)) return std::stoull(line.substr(kKey.size())) * 1024;
  }
  return 0;
}

struct Leader {
  double seconds = 0;
  double window_seconds = 0;
  size_t windows = 0;
  uint64_t window_bytes = 0;
  uint64_t memory = 0;
};

// nullopt when something cannot be planned.
std::optional<Leader> Lead(const std::shared_ptr<const CheckpointIndex>& index,
                           const LayoutRules& rules) {
  Leader out;
  const uint64_t before = PeakBytes();
  const Watch watch;
  std::vector<uint32_t> numbers(rules.world_size());
  std::iota(numbers.begin(), numbers.end(), 0u);
  const auto cohorts = rules.ForRanks(*index, numbers);
  if (!cohorts.ok()) return std::nullopt;
  const auto group = GroupPlan::Make(index, *cohorts, {});
  const auto layout = rules.ForRank(*index, 0);
  if (!group.ok() || !layout.ok()) return std::nullopt;
  const auto own = PlanRank(*index, *layout, {});
  if (!own.ok() || own->digest != group->ranks()[0].digest || group->digest() == 0) {
    return std::nullopt;
  }
  NoSink sink;
  std::vector<const PlannedRank*> ranks;
  for (const PlannedRank& rank : group->ranks()) ranks.push_back(&rank);
  const std::vector<TransferTarget> targets(ranks.size(), TransferTarget{nullptr, {}, &sink});
  const WindowSource source =
      PlansOfGroup(*group, ranks, targets, TransferOptions().window_copies);
  const Watch window_watch;
  TransferWindow window;
  if (!source.plan(0, window).ok()) return std::nullopt;
  if (!BuildParts(*index, window.targets, {}, nullptr, window.parts).ok()) return std::nullopt;
  out.window_seconds = window_watch.Seconds();
  out.seconds = watch.Seconds();
  out.windows = source.window_bytes.size();
  out.window_bytes = source.window_bytes.front();
  out.memory = PeakBytes() - before;
  return out;
}

bool Follow(const CheckpointIndex& index, const LayoutRules& rules, uint32_t rank) {
  const auto layout = rules.ForRank(index, rank);
  if (!layout.ok()) return false;
  const auto plan = PlanRank(index, *layout, {});
  if (!plan.ok()) return false;
  NoSink sink;
  const TransferTarget target[] = {{&*plan, {}, &sink}};
  return BuildSchedule(index, target).ok();
}

struct Scattering {
  double seconds = 0;
  double member_seconds = 0;
  size_t steps = 0;
  uint64_t sent_bytes = 0;
};

// Works out what is sent in each step, as a leader does while bytes move.
class Sender final : public StepUser {
 public:
  explicit Sender(const ScatterOrder& order) : order_(order) {}
  absl::Status Plan(size_t step, std::span<const RankPlan* const> plans) override {
    for (const RankPlan* plan : plans) {
      auto spans = SlabSpans::Make(*plan);
      if (!spans.ok()) return spans.status();
      const StepShare share = spans->Received(order_.steps[step]);
      for (const SlabSpan& span : share.spans) sent_bytes += span.bytes;
    }
    return absl::OkStatus();
  }
  absl::Status Enter(size_t) override { return absl::OkStatus(); }
  void ReleaseStaging(size_t) override {}
  void Stop(const absl::Status&) override {}

  uint64_t sent_bytes = 0;

 private:
  const ScatterOrder& order_;
};

std::optional<Scattering> Scatter(const std::shared_ptr<const CheckpointIndex>& index,
                                  const LayoutRules& rules) {
  std::vector<uint32_t> numbers(rules.world_size());
  std::iota(numbers.begin(), numbers.end(), 0u);
  const auto cohorts = rules.ForRanks(*index, numbers);
  if (!cohorts.ok()) return std::nullopt;
  const auto group = GroupPlan::Make(index, *cohorts, {});
  if (!group.ok()) return std::nullopt;
  Scattering out;
  const Watch watch;
  const ScatterSize size = ScatterSizeFor(rules.world_size());
  const ScatterOrder order = OrderScatter(*index, size);
  NoSink sink;
  std::vector<StepTarget> targets;
  for (const PlannedRank& rank : group->ranks()) {
    targets.push_back({&rank, {SlabView(), SlabView()}, {targets.size()}});
  }
  StepList steps{&order, std::vector<size_t>(order.steps.size())};
  std::iota(steps.steps.begin(), steps.steps.end(), size_t{0});
  Sender sender(order);
  const WindowSource source = StepsOfGroup(*group, steps, targets, sender);
  for (size_t step = 0; step < order.steps.size(); ++step) {
    TransferWindow window;
    if (!source.plan(step, window).ok()) return std::nullopt;
    // Memory is not there to be looked at.
    for (TransferTarget& target : window.targets) target.sink = &sink;
    if (!BuildSchedule(*index, window.targets).ok()) return std::nullopt;
  }
  out.seconds = watch.Seconds();
  out.steps = order.steps.size();
  out.sent_bytes = sender.sent_bytes;
  const Watch member;
  const auto layout = rules.ForRank(*index, rules.world_size() - 1);
  if (!layout.ok()) return std::nullopt;
  const auto plan = PlanRank(*index, *layout, {});
  if (!plan.ok()) return std::nullopt;
  const auto spans = SlabSpans::Make(*plan);
  if (!spans.ok()) return std::nullopt;
  for (const ScatterStep& step : OrderScatter(*index, size).steps) spans->Received(step);
  out.member_seconds = member.Seconds();
  return out;
}

int Run(size_t tensors, uint32_t world_size, bool scatter) {
  constexpr uint32_t kMembers = 4;
  const auto index = std::make_shared<const CheckpointIndex>(ManyTensors(tensors));
  const auto rules = LayoutRules::Parse(fmt::format("fsdp:{}", world_size));
  if (!rules.ok()) return 2;
  const auto leader = Lead(index, *rules);
  if (!leader.has_value()) return 1;
  const Watch watch;
  for (uint32_t i = 0; i < kMembers; ++i) {
    const auto rank = static_cast<uint32_t>(uint64_t{i} * world_size / kMembers);
    if (!Follow(*index, *rules, rank)) return 1;
  }
  const double member_seconds = watch.Seconds() / kMembers;
  std::string more;
  if (scatter) {
    const auto found = Scatter(index, *rules);
    if (!found.has_value()) return 1;
    more = fmt::format(", \"steps\": {}, \"scatter_seconds\": {:.6f}, "
                       "\"scatter_member_seconds\": {:.6f}, \"sent_bytes\": {}, "
                       "\"peak_memory_bytes\": {}",
                       found->steps, found->seconds, found->member_seconds, found->sent_bytes,
                       PeakBytes());
  }
  fmt::print("{{\"tensors\": {}, \"world_size\": {}, \"leader_seconds\": {:.6f}, "
             "\"member_seconds\": {:.6f}, \"windows\": {}, \"window_seconds\": {:.6f}, "
             "\"window_read_bytes\": {}, \"leader_memory_bytes\": {}{}}}\n",
             tensors, world_size, leader->seconds, member_seconds, leader->windows,
             leader->window_seconds, leader->window_bytes, leader->memory, more);
  return 0;
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) {
  const auto number = [&](int at, unsigned long fallback) {
    return argc > at ? std::strtoul(argv[at], nullptr, 10) : fallback;
  };
  const bool scatter = argc > 3 && std::string_view(argv[3]) == "scatter";
  return ckptd::Run(number(1, 92'000), static_cast<uint32_t>(number(2, 1024)), scatter);
}
