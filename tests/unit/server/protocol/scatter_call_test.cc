#include "server/protocol/scatter_call.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

ScatterCall GoodCall() {
  ScatterCall call;
  call.rank = 1;
  call.ranks = {0, 4, 5};
  call.readers = {0};
  call.replicas = {1, 2};
  return call;
}

TEST(ScatterCall, IsRefusedUnlessItFitsTogether) {
  EXPECT_OK(CheckScatterCall(GoodCall()));
  const auto refused = [](const std::function<void(ScatterCall&)>& change) {
    ScatterCall call = GoodCall();
    change(call);
    EXPECT_THAT(CheckScatterCall(call),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  };
  refused([](auto& call) { call.rank = 3; });
  refused([](auto& call) { call.ranks = {0}; });
  refused([](auto& call) { call.readers = {}; });
  refused([](auto& call) { call.readers = {3}; });
  refused([](auto& call) { call.replicas = {2}; });
  refused([](auto& call) { call.whole = {5, 5}; });
  refused([](auto& call) { call.replicas = {1, 3}; });
  refused([](auto& call) { call.replicas = {1, 1}; });
  refused([](auto& call) { call.replicas = {2, 1}; });
  refused([](auto& call) { call.fanout = 0; });
  refused([](auto& call) { call.size.step_bytes = (1 << 20) - 1; });
  refused([](auto& call) { call.size.step_bytes = uint64_t{1} << 40; });
  refused([](auto& call) { call.size.step_tensors = 0; });
}

TEST(ScatterDigest, TellsApartWhateverChangesTheOrderOfOperations) {
  const ScatterOrder order = {{}, {}, 5};
  std::set<uint64_t> digests = {ScatterDigest(GoodCall(), order, 9)};
  const auto another = [&](const std::function<void(ScatterCall&)>& change, uint64_t of_order = 5,
                           uint64_t of_rank = 9) {
    ScatterCall call = GoodCall();
    change(call);
    EXPECT_TRUE(digests.insert(ScatterDigest(call, {{}, {}, of_order}, of_rank)).second);
  };
  another([](auto& call) { call.rank = 2; });
  another([](auto& call) { call.ranks = {0, 4, 6}; });
  another([](auto& call) { call.readers = {0, 1}; });
  another([](auto& call) { call.replicas = {1}; });
  another([](auto& call) { call.fanout = 2; });
  another([](auto& call) { call.whole = {3}; });
  another([](auto&) {}, 6);
  another([](auto&) {}, 5, 10);
}

}  // namespace
}  // namespace ckptd
