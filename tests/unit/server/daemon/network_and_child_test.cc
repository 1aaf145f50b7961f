// Addresses, and processes that `ckptd launch` starts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "server/daemon/child.h"
#include "server/daemon/network.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

TEST(HostPort, IsReadFromText) {
  ASSERT_OK_AND_ASSIGN(const HostPort address, ParseHostPort("node0:29511"));
  EXPECT_EQ(address.host, "node0");
  EXPECT_EQ(address.port, 29511);
}

TEST(HostPort, AnAddressOfVersion6KeepsItsBrackets) {
  ASSERT_OK_AND_ASSIGN(const HostPort address, ParseHostPort("[::1]:80"));
  EXPECT_EQ(address.host, "[::1]");
  EXPECT_EQ(address.port, 80);
}

class NoHostPort : public ::testing::TestWithParam<const char*> {};

TEST_P(NoHostPort, IsRefused) {
  EXPECT_THAT(ParseHostPort(GetParam()),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

INSTANTIATE_TEST_SUITE_P(Texts, NoHostPort,
                         ::testing::Values("", "host", ":80", "host:", "host:x", "host:80x",
                                           "host:-1", "host:65536", "host: 80"));

TEST(ListenAddress, IsAPortOfAllInterfacesOrOfOne) {
  EXPECT_EQ(ListenAddress("29510").value(), "[::]:29510");
  EXPECT_EQ(ListenAddress("127.0.0.1:29510").value(), "127.0.0.1:29510");
  EXPECT_EQ(ListenAddress("[::1]:29510").value(), "[::1]:29510");
  EXPECT_EQ(ListenAddress("0").value(), "");
}

TEST(ListenAddress, IsRefusedWhereItIsNoPort) {
  for (const char* text : {"", "x", "-1", "65536", "host:0", "host:", ":1", "00"}) {
    EXPECT_THAT(ListenAddress(text),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid))
        << text;
  }
}

TEST(OwnAddress, TowardsThisHostIsALoopback) {
  EXPECT_EQ(OwnAddressTowards({"127.0.0.1", 80}).value(), "127.0.0.1");
}

TEST(OwnAddress, UnderstandsBrackets) {
  const auto address = OwnAddressTowards({"[::1]", 80});
  if (address.status().message().find("no route") != std::string::npos) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  EXPECT_EQ(address.value(), "[::1]");
}

TEST(OwnAddress, OfANameNobodyKnowsSaysWhatToTry) {
  const auto address = OwnAddressTowards({"no-such-host.invalid", 80});
  EXPECT_THAT(address, FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(address, Says("--advertise"));
}

// Whether a socket can listen at that port, named explicitly, with that option.
bool CanListen(uint16_t port, int reuse) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  return ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
         ::listen(socket.get(), 1) == 0;
}

TEST(HoldFreePort, KeepsThePortForWhoNamesIt) {
  ASSERT_OK_AND_ASSIGN(HeldPort held, HoldFreePort());
  EXPECT_GT(held.port, 0);
  EXPECT_FALSE(CanListen(held.port, 0)) << "it is free for whoever asks for any";
  EXPECT_TRUE(CanListen(held.port, 1)) << "a server cannot have it";
  held.socket = UniqueFd();
  EXPECT_TRUE(CanListen(held.port, 0));
}

TEST(BootId, IsTheSameEachTime) {
  EXPECT_FALSE(BootId().empty());
  EXPECT_EQ(BootId(), BootId());
}

// Runs `script` in a shell. Returns the wait status.
int RunShell(const std::string& script, const std::map<std::string, std::string>& environment = {}) {
  ChildOptions options;
  options.arguments = {"sh", "-c", script};
  options.environment = environment;
  const pid_t pid = StartChild(options).value();
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

TEST(Child, ItsExitCodeIsKept) {
  const int status = RunShell("exit 3");
  EXPECT_EQ(ExitCodeOf(status), 3);
  EXPECT_EQ(DescribeExit(status), "exit code 3");
}

TEST(Child, ItsSignalIsNamed) {
  const int status = RunShell("kill -KILL $$");
  EXPECT_EQ(ExitCodeOf(status), 128 + SIGKILL);
  EXPECT_EQ(DescribeExit(status), "signal 9 (Killed)");
}

TEST(Child, GetsWhatIsAddedToTheEnvironment) {
  EXPECT_EQ(ExitCodeOf(RunShell("test \"$CKPTD_TEST\" = here", {{"CKPTD_TEST", "here"}})), 0);
}

TEST(Child, AnAddedVariableReplacesOurs) {
  ASSERT_EQ(::setenv("CKPTD_TEST", "old", 1), 0);
  EXPECT_EQ(ExitCodeOf(RunShell("test \"$CKPTD_TEST\" = new", {{"CKPTD_TEST", "new"}})), 0);
  ::unsetenv("CKPTD_TEST");
}

TEST(Child, ACommandThatIsNotThereIsAnError) {
  ChildOptions options;
  options.arguments = {"/nonexistent/command"};
  const auto pid = StartChild(options);
  EXPECT_EQ(pid.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(pid, Says("/nonexistent/command"));
}

// Starts a shell, and returns when `script` has reached its `echo`.
pid_t StartShell(const std::string& script) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  ChildOptions options;
  options.arguments = {"sh", "-c", script};
  options.environment = {{"OUT", std::to_string(writer.get())}};
  options.keep_fd = writer.get();
  const pid_t pid = StartChild(options).value();
  writer.Reset();
  char line = 0;
  EXPECT_EQ(::read(reader.get(), &line, 1), 1);
  return pid;
}

TEST(EndChildren, TellsHowEachOfThemEnded) {
  const pid_t silent = StartShell("echo x >/proc/self/fd/$OUT; exec sleep 100");
  const pid_t careful = StartShell("trap 'exit 3' TERM; echo x >/proc/self/fd/$OUT; while :; do sleep 0.01; done");
  const std::map<pid_t, int> ends = EndChildren({silent, careful}, std::chrono::seconds(60));
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(DescribeExit(ends.at(silent)), "signal 15 (Terminated)");
  EXPECT_EQ(DescribeExit(ends.at(careful)), "exit code 3");
}

TEST(EndChildren, KillsWhatLivesOnWhenPatienceEnds) {
  const pid_t deaf = StartShell("trap '' TERM; echo x >/proc/self/fd/$OUT; exec sleep 100");
  const auto began = std::chrono::steady_clock::now();
  const std::map<pid_t, int> ends = EndChildren({deaf}, std::chrono::milliseconds(50));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
  EXPECT_EQ(DescribeExit(ends.at(deaf)), "signal 9 (Killed)");
}

// In a process of its own, which adopts nothing of other tests.
int ExitCodeIn(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return ExitCodeOf(status);
}

TEST(EndOrphans, EndsWhatACommandHasLeftBehindAndNoOther) {
  EXPECT_EQ(ExitCodeIn([] {
              AdoptOrphans();
              const pid_t ours = StartShell("echo x >/proc/self/fd/$OUT; exec sleep 100");
              // Its children have sessions of their own, as torchrun's workers do. One ignores SIGTERM.
              const pid_t command = StartShell(
                  "setsid sleep 1001 & setsid sh -c 'trap \"\" TERM; echo x >/proc/self/fd/'$OUT'; sleep 1002' & "
                  "wait");
              ::kill(command, SIGKILL);
              ::waitpid(command, nullptr, 0);
              EndOrphans({ours}, std::chrono::milliseconds(200));
              const bool alive = ::waitpid(ours, nullptr, WNOHANG) == 0;
              ::kill(ours, SIGKILL);
              ::waitpid(ours, nullptr, 0);
              const bool none_left = ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
              return (alive ? 0 : 1) + (none_left ? 0 : 2);
            }),
            0);
}

TEST(EndChildren, OneThatWasReapedHasNoEnd) {
  const pid_t gone = StartShell("echo x >/proc/self/fd/$OUT");
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  EXPECT_TRUE(EndChildren({gone}, std::chrono::seconds(60)).empty());
}

}  // namespace
}  // namespace ckptd
