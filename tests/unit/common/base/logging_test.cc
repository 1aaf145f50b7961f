#include "common/base/logging.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "common/base/line_writer.h"
#include "common/base/posix.h"

namespace ckptd {
namespace {

struct SmallPipe {
  SmallPipe() {
    int raw[2] = {-1, -1};
    EXPECT_EQ(::pipe2(raw, O_CLOEXEC), 0);
    reader = UniqueFd(raw[0]);
    writer = UniqueFd(raw[1]);
    EXPECT_GE(::fcntl(writer.get(), F_SETPIPE_SZ, 4096), 4096);
    ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  }
  std::string Drain() const {
    std::string all;
    char part[4096];
    for (ssize_t n = 0; (n = ::read(reader.get(), part, sizeof(part))) > 0;) {
      all.append(part, static_cast<size_t>(n));
    }
    return all;
  }
  UniqueFd reader;
  UniqueFd writer;
};

// The log of this process. The sink checks stderr once, with the first line.
const SmallPipe& LogPipe() {
  static const auto* const pipe = [] {
    const auto* const made = new SmallPipe;
    const UniqueFd before(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
    EXPECT_EQ(::dup2(made->writer.get(), STDERR_FILENO), STDERR_FILENO);
    InitLogging("test", LogLevel::kInfo);
    Log(LogLevel::kInfo, "the first line");
    EXPECT_EQ(::dup2(before.get(), STDERR_FILENO), STDERR_FILENO);
    EXPECT_NE(made->Drain(), "");
    return made;
  }();
  return *pipe;
}

TEST(Logging, LinesThatNobodyReadsAreDroppedAndCountedLater) {
  const SmallPipe& pipe = LogPipe();
  const std::string text(1000, 'x');
  for (int i = 0; i < 100; ++i) Log(LogLevel::kInfo, "{}", text);
  const std::string first = pipe.Drain();
  Log(LogLevel::kInfo, "after");
  const std::string second = pipe.Drain();
  EXPECT_EQ(first.back(), '\n');
  const auto written = std::count(first.begin(), first.end(), '\n');
  const std::string told = " " + std::to_string(100 - written) + " lines were dropped";
  EXPECT_NE(second.find(told), std::string::npos) << second;
  EXPECT_NE(second.find("after\n"), std::string::npos) << second;
}

TEST(LineWriter, FinishesALongLineBeforeTheNext) {
  const SmallPipe pipe;
  LineWriter writer(pipe.writer.get());
  EXPECT_TRUE(writer.Write(std::string(5000, 'a') + "\n"));
  EXPECT_FALSE(writer.Write("b\n"));
  std::string all = pipe.Drain();
  EXPECT_TRUE(writer.Write("c\n"));
  all += pipe.Drain();
  EXPECT_EQ(all, std::string(5000, 'a') + "\nc\n");
}

TEST(LineWriter, LeavesTheSharedDescriptionBlocking) {
  const SmallPipe pipe;
  const LineWriter writer(pipe.writer.get());
  EXPECT_EQ(::fcntl(pipe.writer.get(), F_GETFL) & (O_NONBLOCK | O_APPEND), 0);
}

TEST(LineWriter, DoesNotWaitForASocket) {
  int raw[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, raw), 0);
  const UniqueFd left(raw[0]);
  UniqueFd right(raw[1]);
  LineWriter writer(left.get());
  while (writer.Write(std::string(4096, 'a') + "\n")) {
  }
  right.Reset();
  EXPECT_FALSE(writer.Write("b\n"));
}

TEST(LineWriter, WritesAFileWhereItsOffsetIs) {
  std::string path = ::testing::TempDir() + "line_writerXXXXXX";
  const UniqueFd fd(::mkstemp(path.data()));
  ::unlink(path.c_str());
  ASSERT_EQ(::write(fd.get(), "0123456789", 10), 10);
  ASSERT_EQ(::lseek(fd.get(), 2, SEEK_SET), 2);
  EXPECT_TRUE(LineWriter(fd.get()).Write("ab\n"));
  char text[10] = {};
  ASSERT_EQ(::pread(fd.get(), text, sizeof(text), 0), 10);
  EXPECT_EQ(std::string(text, 10), "01ab\n56789");
}

TEST(Logging, NamesOfFilesForgeNoLines) {
  const SmallPipe& pipe = LogPipe();
  Log(LogLevel::kError, "opening {}", "/m\n2026-01-01 info all is well\xff");
  PlainLine("ckptd: opening /m\n\xff");
  const std::string said = pipe.Drain();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  EXPECT_NE(said.find("opening /m\\n2026-01-01 info all is well\\xff\n"), std::string::npos) << said;
  EXPECT_NE(said.find("ckptd: opening /m\\n\\xff\n"), std::string::npos) << said;
}

}  // namespace
}  // namespace ckptd
