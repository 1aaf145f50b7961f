// Compares maps, limits and sizes with what accelerate 1.15 gave for the same small model.
#include "common/devices/device_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/testing/fake_source.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// emb 800 B, four layers of two linears with 440 B each, norm 80, head 800, pos 28.
FakeSource Net() {
  FakeSource source;
  source.Add("emb.weight", {20, 10}, Dtype::kF32);
  for (int i = 0; i < 4; ++i) {
    for (const char* part : {"l1", "l2"}) {
      const std::string name = "layers." + std::to_string(i) + "." + part;
      source.Add(name + ".weight", {10, 10}, Dtype::kF32);
      source.Add(name + ".bias", {10}, Dtype::kF32);
    }
  }
  source.Add("norm.weight", {10}, Dtype::kF32);
  source.Add("norm.bias", {10}, Dtype::kF32);
  source.Add("head.weight", {20, 10}, Dtype::kF32);
  return source;
}

ModuleTree TreeOf(const CheckpointIndex& index, const ModuleTreeOptions& options = {}) {
  auto tree = ModuleTree::Make(index, options);
  EXPECT_THAT(tree, IsOk());
  return tree.ok() ? *std::move(tree) : ModuleTree{};
}

DeviceMapOptions Options(DeviceMapWay way, const std::string& memory,
                         std::vector<std::string> no_split = {"layers.*"}) {
  DeviceMapOptions options;
  options.way = way;
  auto parsed = ParseMaxMemory(memory);
  EXPECT_THAT(parsed, IsOk());
  options.max_memory = *std::move(parsed);
  options.no_split = std::move(no_split);
  return options;
}

std::map<std::string, std::string> MapOf(const ModuleTree& tree, const DeviceMapOptions& options) {
  const auto map = PlanDeviceMap(tree, options);
  EXPECT_THAT(map, IsOk());
  std::map<std::string, std::string> out;
  for (const PlacedModule& module : map->modules) out[module.name] = module.device;
  return out;
}

TEST(DeviceMap, FillsOneDeviceAfterTheOtherAndKeepsRoomForTheLargestLayer) {
  FakeSource net = Net();
  const auto options = Options(DeviceMapWay::kSequential, "0=3000,1=3000,cpu=10000");
  EXPECT_THAT(MapOf(TreeOf(net.index()), options),
              UnorderedElementsAre(Pair("emb", "0"), Pair("layers.0", "0"), Pair("layers.1", "1"),
                                   Pair("layers.2", "1"), Pair("layers.3", "1"), Pair("norm", "1"),
                                   Pair("head", "cpu")));
}

TEST(DeviceMap, IsOneEntryWhereAllIsOnOneDevice) {
  FakeSource net = Net();
  EXPECT_THAT(MapOf(TreeOf(net.index()), Options(DeviceMapWay::kSequential, "0=900,cpu=900")),
              ElementsAre(Pair("", "disk")));
}

TEST(DeviceMap, KeepsTiedModulesTogether) {
  FakeSource net = Net();
  ModuleTreeOptions tied;
  tied.tied = {{"head.weight", "emb.weight"}};
  const ModuleTree tree = TreeOf(net.index(), tied);
  EXPECT_EQ(tree.nodes[0].bits, 4400u * 8);
  EXPECT_THAT(MapOf(tree, Options(DeviceMapWay::kSequential, "0=3000,1=3000,cpu=10000")),
              UnorderedElementsAre(Pair("emb", "0"), Pair("head", "0"), Pair("layers.0", "0"),
                                   Pair("layers.1", "1"), Pair("layers.2", "1"),
                                   Pair("layers.3", "1"), Pair("norm", "1")));
}

// accelerate looks for a module's name anywhere in the name of a tied tensor. So emb takes head
// along, and x no longer finds it.
TEST(DeviceMap, TakesATieOfAModuleOfTheSameNameForItsOwn) {
  FakeSource net = Net();
  ModuleTreeOptions tied;
  tied.tied = {{"x.emb.weight", "head.weight"}};
  EXPECT_THAT(PlanDeviceMap(TreeOf(net.index(), tied),
                            Options(DeviceMapWay::kSequential, "0=3000,1=3000,cpu=10000")),
              FailsWith(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST"));
  tied.tied = {{"x.em.weight", "head.weight"}};
  EXPECT_THAT(PlanDeviceMap(TreeOf(net.index(), tied),
                            Options(DeviceMapWay::kSequential, "0=3000,1=3000,cpu=10000")),
              IsOk());
}

TEST(DeviceMap, TakesAliasesOfTheCheckpointForTies) {
  FakeSource net = Net();
  net.index().aliases = {{"out.weight", "emb.weight"}};
  const auto tree = TreeOf(net.index());
  EXPECT_THAT(tree.ties, ElementsAre(ElementsAre("emb.weight", "out.weight")));
  EXPECT_EQ(tree.nodes[0].bits, 5200u * 8);
}

TEST(DeviceMap, RefusesATieWithAPartOfAModuleThatWasTakenApart) {
  FakeSource net = Net();
  net.Add("wide.part.weight", {100, 10}, Dtype::kF32);
  ModuleTreeOptions tied;
  tied.tied = {{"wide.tied", "emb.weight"}};
  const auto map = PlanDeviceMap(TreeOf(net.index(), tied),
                                 Options(DeviceMapWay::kSequential, "0=5500"));
  EXPECT_THAT(map, FailsWith(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST"));
}

// Patterns that match slowly: a star before a long text that never occurs.
std::vector<std::string> SlowGlobs(size_t count) {
  return std::vector<std::string>(count, "*" + std::string(10'000, 'x') + "y");
}
// A module whose name has `bytes` bytes, and a module in it.
FakeSource LongNamed(size_t bytes) {
  FakeSource source;
  source.Add(std::string(bytes, 'x') + ".part.a", {1}, Dtype::kF32);
  return source;
}

TEST(DeviceMap, RefusesPatternsThatWouldTakeForever) {
  const auto refused = FailsWith(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST");
  FakeSource source = LongNamed(20'000);
  for (const DeviceMapWay way : {DeviceMapWay::kSequential, DeviceMapWay::kBalanced}) {
    DeviceMapOptions options = Options(way, "0=3000,1=3000", SlowGlobs(1));
    EXPECT_THAT(PlanDeviceMap(TreeOf(source.index()), options), IsOk());
    options.no_split = SlowGlobs(10);
    EXPECT_THAT(PlanDeviceMap(TreeOf(source.index()), options), refused);
    EXPECT_THAT(BalanceMemory(TreeOf(source.index()), options), refused);
  }
  ModuleTreeOptions order;
  order.order = SlowGlobs(10);
  EXPECT_THAT(ModuleTree::Make(source.index(), order), refused);
  ModuleTreeOptions kept;
  kept.dtypes.keep_f32 = SlowGlobs(10);
  EXPECT_THAT(ModuleTree::Make(source.index(), kept), refused);
}

TEST(DeviceMap, TakesAsManyPatternsAsAModelHasModules) {
  FakeSource source;
  ModuleTreeOptions options;
  for (int i = 0; i < 2'000; ++i) {
    const std::string module = "model.layers." + std::to_string(i) + ".self_attn.q_proj";
    source.Add(module + ".weight", {1}, Dtype::kF32);
    options.order.push_back(module);
  }
  EXPECT_THAT(ModuleTree::Make(source.index(), options), IsOk());
}

TEST(DeviceMap, RefusesLongNamesThatAreTied) {
  const std::string longest(200'000, 'x');
  FakeSource source = LongNamed(longest.size());
  ModuleTreeOptions tied;
  tied.tied = {{longest + ".b", longest + ".part.a"}};
  EXPECT_THAT(PlanDeviceMap(TreeOf(source.index(), tied),
                            Options(DeviceMapWay::kSequential, "0=3000")),
              FailsWith(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST"));
}

// A module that is tied with so many others that each of them is split in a step of its own, in
// which all of its ties are looked up.
TEST(DeviceMap, RefusesTiesThatWouldTakeForever) {
  constexpr int kTies = 2'500;
  FakeSource source;
  ModuleTreeOptions tied;
  for (int i = 0; i < kTies; ++i) {
    const std::string number = std::to_string(i);
    source.Add("m.t" + number, {1}, Dtype::kF32);
    source.Add("x" + number + ".b.w", {1000}, Dtype::kF32);
    tied.tied["x" + number + ".a.w"] = "m.t" + number;
  }
  tied.order = {"m"};
  EXPECT_THAT(PlanDeviceMap(TreeOf(source.index(), tied),
                            Options(DeviceMapWay::kSequential, "0=1,1=48000")),
              FailsWith(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST"));
}

TEST(BalanceMemory, GivesEachGpuItsShareAndSomeMore) {
  FakeSource net = Net();
  const auto tree = TreeOf(net.index());
  const auto balanced = BalanceMemory(tree, Options(DeviceMapWay::kBalanced, "0=100000,1=100000"));
  ASSERT_THAT(balanced, IsOk());
  EXPECT_EQ((*balanced)[0].bits, (5200 / 2 + 1100) * 8);
  EXPECT_EQ((*balanced)[1].bits, 100000 * 8);
}

TEST(BalanceMemory, LeavesTheFirstGpuWhatTheOthersCannotHold) {
  FakeSource net = Net();
  const auto tree = TreeOf(net.index());
  const auto balanced =
      BalanceMemory(tree, Options(DeviceMapWay::kBalancedLowZero, "0=100000,1=5000,2=100"));
  ASSERT_THAT(balanced, IsOk());
  EXPECT_EQ((*balanced)[0].bits, (5200 - (2600 + 1100) - 100) * 8);
}

TEST(BalanceMemory, NeedsAllGpusToLeaveTheFirstOneEmpty) {
  FakeSource net = Net();
  const auto tree = TreeOf(net.index());
  EXPECT_THAT(BalanceMemory(tree, Options(DeviceMapWay::kBalancedLowZero, "0=9,2=9")),
              FailsWith(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST"));
}

TEST(MaxMemory, IsSortedAsDevicesAreFilled) {
  const auto memory = ParseMaxMemory("cpu=1KiB,10=2,disk=1,9=1GB");
  ASSERT_THAT(memory, IsOk());
  std::vector<std::pair<std::string, int64_t>> found;
  for (const DeviceLimit& limit : *memory) found.emplace_back(limit.device, limit.bits / 8);
  EXPECT_THAT(found, ElementsAre(Pair("9", 1000000000), Pair("10", 2), Pair("cpu", 1024),
                                 Pair("disk", 1)));
}

TEST(MaxMemory, ThatCannotBeReadIsRefused) {
  for (const char* text : {"", "0", "0=", "=1", "0=x", "0=-1", "0=1,0=2", "gpu=1", "00=1", "0=nan",
                           "0=inf", "0=1e300GB", "0=1 ", "cpu=1,", "99999=1"}) {
    EXPECT_THAT(ParseMaxMemory(text), FailsWith(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST"))
        << text;
  }
}

}  // namespace
}  // namespace ckptd
