#include "server/transfer/file_times.h"

#include <gtest/gtest.h>

#include <string>

#include "server/transfer/transfer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {
namespace {

class FileTimesTest : public ::testing::Test {
 protected:
  void Read(FileTimes::Reader& thread, uint32_t file, uint64_t bytes, std::chrono::milliseconds took) {
    thread.Begin(file, "/f" + std::to_string(file), now_);
    now_ += took;
    thread.End(bytes, now_);
  }

  FileTimes times_;
  FileTimes::Reader one_{times_};
  FileTimes::Time now_ = FileTimes::Time() + std::chrono::hours(1);
};

TEST_F(FileTimesTest, NamesNothingWhileNothingIsRead) { EXPECT_EQ(times_.Slowest(now_).path, ""); }

TEST_F(FileTimesTest, NamesTheFileThatIsReadAtHalfTheRateOfTheOthers) {
  Read(one_, 0, 1000, FileTimes::kEnough);
  Read(one_, 1, 499, FileTimes::kEnough);
  Read(one_, 2, 1000, FileTimes::kEnough);
  EXPECT_EQ(times_.Slowest(now_).path, "/f1");
  EXPECT_DOUBLE_EQ(times_.Slowest(now_).bytes_per_second, 499 / 0.05);
}

TEST_F(FileTimesTest, NamesNoneOfFilesThatAreAboutAsFast) {
  Read(one_, 0, 1000, FileTimes::kEnough);
  Read(one_, 1, 501, FileTimes::kEnough);
  EXPECT_EQ(times_.Slowest(now_).path, "");
}

TEST_F(FileTimesTest, DoesNotCompareAFileThatHasHardlyBeenRead) {
  Read(one_, 0, 1000, FileTimes::kEnough);
  Read(one_, 1, 1, FileTimes::kEnough - std::chrono::milliseconds(1));
  EXPECT_EQ(times_.Slowest(now_).path, "");
}

TEST_F(FileTimesTest, NamesAFileWhoseStorageDoesNotAnswerAlsoIfItIsTheOnlyOne) {
  one_.Begin(7, "/only", now_);
  now_ += FileTimes::kStalled - std::chrono::milliseconds(1);
  EXPECT_EQ(times_.Slowest(now_).path, "");
  now_ += std::chrono::milliseconds(1);
  EXPECT_EQ(times_.Slowest(now_).path, "/only");
  EXPECT_EQ(times_.Slowest(now_).bytes_per_second, 0);
  one_.End(1, now_);
  EXPECT_EQ(times_.Slowest(now_).path, "");
}

TEST_F(FileTimesTest, ForgetsWhatAThreadHasNotEnded) {
  {
    FileTimes::Reader other(times_);
    other.Begin(7, "/only", now_);
  }
  EXPECT_EQ(times_.Slowest(now_ + FileTimes::kStalled).path, "");
}

TEST(TransferTimes, HaveEachFileThatATransferReads) {
  World world(2, 1);
  for (const size_t file : {size_t{0}, size_t{1}}) {
    const uint64_t offset = world.AddBytes(file, 5000, file);
    world.AddTensor(0, static_cast<uint32_t>(file), offset, Dtype::kU8, Dtype::kU8, {1, 1, 5000},
                    {{}, {1, 1, 5000}});
  }
  world.Finish(1 << 20);
  TransferProgress progress(1);
  // As if file 1 had been read before, and had taken very long.
  FileTimes::Reader before(progress.files);
  before.Begin(1, world.index.files[1].path, FileTimes::Time());
  before.End(1, FileTimes::Time() + std::chrono::hours(1));
  FileTimes::Reader other(progress.files);
  other.Begin(0, world.index.files[0].path, FileTimes::Time());
  other.End(1, FileTimes::Time() + FileTimes::kEnough);
  const double rate = progress.files.Slowest(FileTimes::Time()).bytes_per_second;
  ASSERT_OK(RunTransfer(world.index, world.targets, {}, progress));
  const FileRate slowest = progress.files.Slowest(FileTimes::Time());
  EXPECT_EQ(slowest.path, world.index.files[1].path);
  EXPECT_GT(slowest.bytes_per_second, 4000 * rate);
}

}  // namespace
}  // namespace ckptd
