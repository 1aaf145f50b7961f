#include "server/daemon/process_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

// What a child says that limits itself. Empty: the limits are fine.
std::string Under(int resource, rlim_t limit) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::pipe(fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit set = {limit, limit};
    ::setrlimit(static_cast<__rlimit_resource>(resource), &set);
    const absl::Status checked = CheckProcessLimits();
    const std::string said = checked.ok() ? "" : MessageOf(checked) + " " + ReasonOf(checked);
    const ssize_t written = ::write(fds[1], said.data(), said.size());
    ::_exit(written == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  ::close(fds[1]);
  std::string said(4096, '\0');
  said.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(fds[0], said.data(), said.size()))));
  ::close(fds[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return said;
}

TEST(ProcessLimits, AreFineWhereThereAreNone) {
  EXPECT_OK(CheckProcessLimits());
  EXPECT_EQ(Under(RLIMIT_AS, RLIM_INFINITY), "");
}

TEST(ProcessLimits, WithTooFewAddressesAreRefusedByTheirName) {
  const std::string said = Under(RLIMIT_AS, 400'000'000);
  EXPECT_NE(said.find("starting: this process may have 381 MB of addresses (ulimit -v)"), std::string::npos)
      << said;
  EXPECT_NE(said.find(reason::kConfigInvalid), std::string::npos);
}

TEST(ProcessLimits, WithTooFewThreadsAreRefusedWithTheNumber) {
  // More than any system gives: what is tried out does not depend on who runs this.
  const absl::Status refused = CheckProcessLimits(5'000'000, 0);
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(refused, Says("of the 5000000 threads that a daemon starts with this process got "));
}

[[noreturn]] void AllocateForever() {
  SayWhenMemoryEnds();
  const rlimit set = {1 << 28, 1 << 28};
  ::setrlimit(RLIMIT_AS, &set);
  for (std::vector<std::unique_ptr<char[]>> all;;) all.push_back(std::make_unique<char[]>(16 << 20));
}

// A process that goes on allocating ends by itself, not by a signal.
TEST(ProcessLimits, MemoryThatEndsIsSaidInOneSentence) {
  EXPECT_EXIT(AllocateForever(), testing::ExitedWithCode(1),
              "allocating memory: this process may have no more");
}

}  // namespace
}  // namespace ckptd
