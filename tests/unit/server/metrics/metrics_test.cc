#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/metrics/exposition.h"
#include "server/metrics/families.h"
#include "server/metrics/recorder.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr MetricSpec kBytes{"x_bytes", MetricType::kCounter, "bytes", "Bytes."};
constexpr MetricSpec kTime{"x_seconds", MetricType::kHistogram, "seconds", "Time."};

TEST(WriteMetrics, WritesCountersAsBothFormatsWantThem) {
  Counter counter(kBytes);
  counter.Add({{"way", "a"}}, 1.5);
  counter.Add({{"way", "a"}}, 2);
  EXPECT_EQ(WriteMetrics({counter.Collect()}, {{"rank", "3"}}, TextFormat::kPrometheus),
            "# HELP x_bytes_total Bytes.\n# TYPE x_bytes_total counter\n"
            "x_bytes_total{rank=\"3\",way=\"a\"} 3.5\n");
  EXPECT_EQ(WriteMetrics({counter.Collect()}, {}, TextFormat::kOpenMetrics),
            "# HELP x_bytes Bytes.\n# TYPE x_bytes counter\n# UNIT x_bytes bytes\n"
            "x_bytes_total{way=\"a\"} 3.5\n# EOF\n");
}

TEST(WriteMetrics, WritesBucketsThatAddUp) {
  Histogram histogram(kTime, {0.1, 1});
  for (const double value : {0.05, 0.1, 0.5, 7.0}) histogram.Observe({}, value);
  EXPECT_EQ(WriteMetrics({histogram.Collect()}, {}, TextFormat::kPrometheus),
            "# HELP x_seconds Time.\n# TYPE x_seconds histogram\n"
            "x_seconds_bucket{le=\"0.1\"} 2\nx_seconds_bucket{le=\"1\"} 3\n"
            "x_seconds_bucket{le=\"+Inf\"} 4\nx_seconds_sum 7.65\nx_seconds_count 4\n");
}

TEST(WriteMetrics, QuotesValuesOfLabels) {
  EXPECT_THAT(WriteMetrics({GaugeOf(metric::kReady, 1, {{"a", "\"\\\n"}})}, {}, TextFormat::kPrometheus),
              HasSubstr("{a=\"\\\"\\\\\\n\"} 1\n"));
}

TEST(Counter, CountsNoMoreSetsOfLabelsThanItMayHave) {
  Counter counter(kBytes);
  for (size_t i = 0; i < kMostLabelSets + 10; ++i) counter.Add({{"way", std::to_string(i)}}, 1);
  const Family family = counter.Collect();
  EXPECT_EQ(family.samples.size(), kMostLabelSets + 1);
  EXPECT_THAT(WriteMetrics({family}, {}, TextFormat::kPrometheus),
              HasSubstr("x_bytes_total{way=\"other\"} 10\n"));
}

TEST(MergeMetrics, PutsTheSamplesOfAFamilyTogether) {
  const auto text = [](const char* rank, TextFormat format) {
    return WriteMetrics({GaugeOf(metric::kReady, 1), GaugeOf(metric::kDraining, 0)}, {{"rank", rank}},
                        format);
  };
  const auto format = TextFormat::kOpenMetrics;
  EXPECT_EQ(MergeMetrics({text("0", format), "", text("1", format)}, format),
            "# HELP ckptd_ready 1 if the group is complete and the daemon takes work.\n"
            "# TYPE ckptd_ready gauge\nckptd_ready{rank=\"0\"} 1\nckptd_ready{rank=\"1\"} 1\n"
            "# HELP ckptd_draining 1 if the daemon was told to take nothing new.\n"
            "# TYPE ckptd_draining gauge\nckptd_draining{rank=\"0\"} 0\nckptd_draining{rank=\"1\"} 0\n"
            "# EOF\n");
  EXPECT_EQ(MergeMetrics({"# HELP cut short", "nothing of ours"}, TextFormat::kPrometheus),
            "# HELP cut short");
}

class RecorderTest : public ::testing::Test {
 protected:
  std::string Text() const { return WriteMetrics(recorder_.Collect(), {}, TextFormat::kPrometheus); }

  MetricsRecorder recorder_;
};

TEST_F(RecorderTest, CountsALoadThatEnds) {
  Progress last;
  last.bytes_done = 100;
  last.sent_bytes = 40;
  last.read = {90, 50, 10};
  last.bytes_per_second = 5000;
  last.stages = {{Stage::kOpening, milliseconds(20)}, {Stage::kTransferring, milliseconds(400)}};
  recorder_.OnEnded("checkpoints/a", absl::OkStatus(), last);
  const std::string text = Text();
  for (const char* const line :
       {"ckptd_loads_total{outcome=\"loaded\",reason=\"\"} 1\n", "ckptd_load_bytes_total 100\n",
        "ckptd_load_sent_bytes_total 40\n", "ckptd_load_read_bytes_total{way=\"mapped\"} 50\n",
        "ckptd_load_read_bytes_total{way=\"direct\"} 10\n",
        "ckptd_load_read_bytes_total{way=\"buffered\"} 30\n",
        "ckptd_load_seconds_sum{outcome=\"loaded\"} 0.42\n",
        "ckptd_load_stage_seconds_bucket{stage=\"transferring\",le=\"0.25\"} 0\n",
        "ckptd_load_stage_seconds_bucket{stage=\"transferring\",le=\"0.5\"} 1\n",
        "ckptd_load_bytes_per_second 5000\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("checkpoints/a")));
}

TEST_F(RecorderTest, TellsFailuresByTheirReasonAndCancelledLoadsFromBoth) {
  recorder_.OnEnded("a", MakeError(absl::StatusCode::kAborted, reason::kLoadCancelled, "x"), {});
  recorder_.OnEnded("b", MakeError(absl::StatusCode::kUnavailable, reason::kRankLost, "x"), {});
  EXPECT_THAT(Text(), HasSubstr("{outcome=\"cancelled\",reason=\"LOAD_CANCELLED\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("{outcome=\"failed\",reason=\"RANK_LOST\"} 1\n"));
}

TEST_F(RecorderTest, ShowsWhatIsSlowWhileALoadMovesBytes) {
  Progress progress;
  progress.stage = Stage::kTransferring;
  progress.bytes_per_second = 1000;
  progress.slowest_rank = 3;
  progress.slowest_file = {"/models/secret", 12};
  EXPECT_THAT(Text(), Not(HasSubstr("ckptd_load_slow_file_bytes_per_second 12")));
  recorder_.OnProgress("a", progress);
  EXPECT_THAT(Text(), HasSubstr("ckptd_load_slowest_rank 3\n"));
  EXPECT_THAT(Text(), HasSubstr("ckptd_load_slow_file_bytes_per_second 12\n"));
  EXPECT_THAT(Text(), Not(HasSubstr("secret")));
  recorder_.OnEnded("a", absl::OkStatus(), progress);
  EXPECT_THAT(Text(), HasSubstr("ckptd_load_slowest_rank -1\n"));
  EXPECT_THAT(Text(), Not(HasSubstr("ckptd_load_slow_file_bytes_per_second 12")));
}

TEST_F(RecorderTest, CountsAttachesAndEvictions) {
  recorder_.OnAttached(AttachMode::kShared, milliseconds(2));
  recorder_.OnEvicted(7);
  recorder_.OnEvicted(8);
  EXPECT_THAT(Text(), HasSubstr("ckptd_attach_seconds_bucket{mode=\"shared\",le=\"0.0025\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("ckptd_evictions_total 2\n"));
  EXPECT_THAT(Text(), HasSubstr("ckptd_evicted_bytes_total 15\n"));
}

}  // namespace
}  // namespace ckptd
