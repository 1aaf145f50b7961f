#include "server/rpc/links.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "ckptd/v1/group_service.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/rpc/grpc_server.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

// No leader, as the host that had its address before. Notes each connection.
class Nobody final : public v1::GroupService::Service {
 public:
  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest*,
                    v1::JoinResponse*) override {
    MutexLock lock(mutex_);
    connections_.insert(context->peer());
    return {grpc::StatusCode::UNAVAILABLE, "nobody is here"};
  }
  size_t connections() {
    MutexLock lock(mutex_);
    return connections_.size();
  }

 private:
  Mutex mutex_;
  std::set<std::string> connections_ ABSL_GUARDED_BY(mutex_);
};

TEST(LeaderLink, LooksForTheLeaderAnewInEachAttemptToJoinAfterOneThatFoundNobody) {
  Nobody nobody;
  ASSERT_OK_AND_ASSIGN(const auto server, GrpcServer::Start({"127.0.0.1:0"}, {&nobody}));
  const auto leader = ConnectToLeader("127.0.0.1:" + std::to_string(server->port()), {});
  for (size_t attempt = 1; attempt <= 3; ++attempt) {
    EXPECT_EQ(ReasonOf(leader->Join({}, {}, Soon()).status()), reason::kRankLost);
    EXPECT_EQ(nobody.connections(), attempt);
  }
}

}  // namespace
}  // namespace ckptd
