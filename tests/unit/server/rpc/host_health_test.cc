#include "server/rpc/host_health.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "server/rpc/grpc_server.h"
#include "server/rpc/health_service.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

// A host of two daemons, none of which runs yet.
class HostHealthTest : public ::testing::Test {
 protected:
  struct Daemon {
    std::string socket;
    std::atomic<ServingStatus> answer = ServingStatus::kServing;
    HealthServiceImpl service{[this](const std::string&) { return answer.load(); }};
    std::unique_ptr<GrpcServer> server;
  };
  HostHealthTest() {
    for (size_t i = 0; i < daemons_.size(); ++i) daemons_[i].socket = folder_ / std::to_string(i);
  }
  void Start(Daemon& daemon) {
    auto server = GrpcServer::Start({"unix:" + daemon.socket}, {&daemon.service});
    ASSERT_OK(server);
    daemon.server = *std::move(server);
  }

  TempFolder folder_;
  std::array<Daemon, 2> daemons_;
};

TEST_F(HostHealthTest, IsThatOfTheFirstDaemonThatDoesNotServe) {
  for (Daemon& daemon : daemons_) Start(daemon);
  const HostHealth health({daemons_[0].socket, daemons_[1].socket});
  EXPECT_EQ(health.Ask("liveness"), ServingStatus::kServing);
  daemons_[1].answer = ServingStatus::kUnknown;
  EXPECT_EQ(health.Ask("liveness"), ServingStatus::kUnknown);
  daemons_[0].answer = ServingStatus::kNotServing;
  EXPECT_EQ(health.Ask("liveness"), ServingStatus::kNotServing);
}

TEST_F(HostHealthTest, ADaemonThatWasAwayIsFoundAgain) {
  Start(daemons_[0]);
  const HostHealth health({daemons_[0].socket, daemons_[1].socket});
  EXPECT_EQ(health.Ask("liveness"), ServingStatus::kNotServing);
  Start(daemons_[1]);
  ServingStatus found = ServingStatus::kNotServing;
  for (const Deadline end = Soon(); found != ServingStatus::kServing && Clock::now() < end;) {
    found = health.Ask("liveness");
  }
  EXPECT_EQ(found, ServingStatus::kServing);
}

}  // namespace
}  // namespace ckptd
