#include "client/cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "client/cli/text.h"

namespace ckptd::cli {
namespace {

v1::Progress Halfway() {
  v1::Progress progress;
  progress.set_stage(v1::STAGE_TRANSFERRING);
  progress.set_bytes_total(15'200'000'000);
  progress.set_bytes_done(7'600'000'000);
  progress.set_bytes_per_second(3.8e9);
  progress.set_slowest_rank(3);
  return progress;
}

TEST(ProgressLine, SaysHowFarAndHowLong) {
  EXPECT_EQ(ProgressLine(Halfway()),
            "TRANSFERRING  50%  7.6 GB of 15.2 GB  3.8 GB/s  ETA 2.0 s  slowest rank 3");
}

TEST(ProgressLine, NamesTheSlowFileBesideTheSlowRank) {
  v1::Progress progress = Halfway();
  progress.mutable_slowest_file()->set_path("/data/a\n/model-2.safetensors");
  EXPECT_EQ(ProgressLine(progress),
            "TRANSFERRING  50%  7.6 GB of 15.2 GB  3.8 GB/s  ETA 2.0 s  slowest rank 3"
            "  slow file model-2.safetensors");
}

TEST(ProgressLine, NamesTheRanksALoadWaitsFor) {
  v1::Progress progress;
  progress.set_stage(v1::STAGE_GATHERING);
  progress.add_waiting_ranks(1);
  progress.add_waiting_ranks(2);
  EXPECT_EQ(ProgressLine(progress), "GATHERING  waiting for ranks 1, 2");
}

TEST(ProgressLine, SaysWhatARankLoadsInstead) {
  v1::Progress progress;
  progress.set_stage(v1::STAGE_GATHERING);
  progress.add_waiting_ranks(1);
  progress.set_conflict("rank 1 loads /other");
  EXPECT_EQ(ProgressLine(progress), "GATHERING  waiting for rank 1 (rank 1 loads /other)");
}

TEST(ProgressLine, DoesNotListAThousandRanks) {
  v1::Progress progress;
  progress.set_stage(v1::STAGE_GATHERING);
  for (int rank = 0; rank < 1000; ++rank) progress.add_waiting_ranks(rank);
  EXPECT_EQ(ProgressLine(progress),
            "GATHERING  waiting for ranks 0, 1, 2, 3, 4, 5, 6, 7 and 992 more");
}

TEST(ProgressLine, HasAWordForALoadThatHasJustBegun) {
  EXPECT_EQ(ProgressLine(v1::Progress()), "STARTING");
}

TEST(ProgressBar, FitsTheTerminal) {
  EXPECT_EQ(ProgressBar(Halfway(), 200),
            "TRANSFERRING [############............]  50%  7.6 GB of 15.2 GB  3.8 GB/s  ETA 2.0 s"
            "  slowest rank 3");
  EXPECT_EQ(Columns(ProgressBar(Halfway(), 40)), 40U);
}

TEST(ProgressBar, ShowsTheEtaIn80Columns) {
  v1::Progress progress = Halfway();
  EXPECT_EQ(ProgressBar(progress, 79),
            "TRANSFERRING  50%  7.6 GB of 15.2 GB  3.8 GB/s  ETA 2.0 s  slowest rank 3");
  progress.set_slowest_rank(-1);
  const std::string bar = ProgressBar(progress, 79);
  EXPECT_EQ(Columns(bar), 79U);
  EXPECT_THAT(bar, ::testing::EndsWith(".]  50%  7.6 GB of 15.2 GB  3.8 GB/s  ETA 2.0 s"));
}

TEST(ProgressBar, StaysWithinItsFrameWhenCountsAreOff) {
  v1::Progress progress = Halfway();
  progress.set_bytes_done(progress.bytes_total() * 2);
  const std::string bar = ProgressBar(progress, 200);
  EXPECT_EQ(std::count(bar.begin(), bar.end(), '#'), 24);
}

class ProgressViewTest : public ::testing::Test {
 protected:
  std::ostringstream out_;
  std::ostringstream err_;
  TimePoint now_;
  Io io_{out_, err_, false, 80, nullptr, [this] { return now_; }};
};

TEST_F(ProgressViewTest, PrintsALinePerStageAndEveryFiveSeconds) {
  ProgressView view(io_, false);
  view.Update(Halfway());
  now_ += std::chrono::milliseconds(4999);
  view.Update(Halfway());
  now_ += std::chrono::milliseconds(1);
  view.Update(Halfway());
  v1::Progress publishing = Halfway();
  publishing.set_stage(v1::STAGE_PUBLISHING);
  view.Update(publishing);
  const std::string text = err_.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST_F(ProgressViewTest, RedrawsOneLineOnATerminalAndRemovesItAtTheEnd) {
  io_.err_terminal = true;
  {
    ProgressView view(io_, false);
    view.Update(Halfway());
    view.Update(Halfway());
  }
  const std::string text = err_.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0);
  EXPECT_EQ(text.substr(text.size() - 4), "\r\x1b[K");
}

TEST_F(ProgressViewTest, KeepsQuietWhenToldTo) {
  ProgressView view(io_, true);
  view.Update(Halfway());
  EXPECT_EQ(err_.str(), "");
}

}  // namespace
}  // namespace ckptd::cli
