#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "server/rpc/convert.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

ReadOrder Order() {
  ReadOrder order;
  order.part = 1;
  order.parts = 3;
  ReadOrder::Target target;
  target.who.rank = 7;
  target.who.incarnation = "a process";
  target.who.address = "10.0.0.7:4000";
  target.who.host = "host";
  target.rank_digest = 0xabc;
  target.prepared.memory_endpoint = "/run/seven.sock";
  target.prepared.segments = {{5, 4096}};
  order.targets.push_back(target);
  order.cohorts.push_back(
      {std::get<std::shared_ptr<const RankLayout>>(RankRequest(7, 8).layout), {7, 5}});
  return order;
}

TEST(ConvertReading, AnOrderArrivesAsItWasGiven) {
  ASSERT_OK_AND_ASSIGN(const ReadOrder order, FromProto(ToProto(Order())));
  EXPECT_EQ(order.part, 1u);
  EXPECT_EQ(order.parts, 3u);
  ASSERT_EQ(order.targets.size(), 1u);
  const ReadOrder::Target& target = order.targets[0];
  EXPECT_EQ(target.who.rank, 7u);
  EXPECT_EQ(target.who.incarnation, "a process");
  EXPECT_EQ(target.who.address, "10.0.0.7:4000");
  EXPECT_EQ(target.who.host, "host");
  EXPECT_EQ(target.rank_digest, 0xabcu);
  ASSERT_EQ(order.cohorts.size(), 1u);
  EXPECT_EQ(order.cohorts[0].ranks, (std::vector<uint32_t>{7, 5}));
  EXPECT_EQ(LayoutDigest(*order.cohorts[0].layout), LayoutDigest(*Order().cohorts[0].layout));
  EXPECT_EQ(target.prepared.memory_endpoint, "/run/seven.sock");
  EXPECT_EQ(target.prepared.segments[0].id, 5u);
}

TEST(ConvertReading, APartThatIsNotOneOfThePartsIsRefused) {
  v1::ReadOrder order = ToProto(Order());
  order.set_part(3);
  EXPECT_THAT(FromProto(order),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  order.set_part(0);
  order.set_parts(0);
  EXPECT_THAT(FromProto(order), Says("part 0 of 0"));
}

TEST(ConvertReading, AStatementOfARankThatCannotBeIsRefused) {
  v1::ReadOrder order = ToProto(Order());
  order.mutable_cohorts(0)->add_ranks(8);
  EXPECT_THAT(FromProto(order), Says("rank 8 of 8"));
  order.mutable_cohorts(0)->set_ranks(2, -1);
  EXPECT_THAT(FromProto(order),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST(ConvertReading, AReportArrivesAsItWasGiven) {
  ReadReport report;
  report.read.storage_bytes = 100;
  report.slowest_file = {"/m/a", 2.5};
  report.filled.push_back({7, 60, true, {}});
  report.filled.push_back({8, 40, false, {1, 2}});
  const ReadReport arrived = FromProto(ToProto(report));
  EXPECT_EQ(arrived.read.storage_bytes, 100u);
  EXPECT_EQ(arrived.slowest_file.path, "/m/a");
  ASSERT_EQ(arrived.filled.size(), 2u);
  EXPECT_EQ(arrived.filled[0].rank, 7u);
  EXPECT_EQ(arrived.filled[0].bytes, 60u);
  EXPECT_TRUE(arrived.filled[0].streamed);
  EXPECT_EQ(arrived.filled[1].digests, std::vector<uint64_t>({1, 2}));
}

}  // namespace
}  // namespace ckptd
