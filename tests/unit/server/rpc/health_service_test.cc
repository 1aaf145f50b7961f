#include "server/rpc/health_service.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckptd/v1/admin_service.grpc.pb.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/grpc_status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using Stub = grpc::health::v1::Health::Stub;

// One call, with a deadline.
class Call {
 public:
  explicit Call(std::chrono::seconds patience = std::chrono::seconds(60)) {
    context_.set_deadline(std::chrono::system_clock::now() + patience);
  }
  grpc::ClientContext* get() { return &context_; }

 private:
  grpc::ClientContext context_;
};

class HealthServiceTest : public ::testing::Test {
 protected:
  void Start(GrpcServer::Options options) {
    auto server = GrpcServer::Start(std::move(options), {&service_});
    ASSERT_OK(server);
    server_ = *std::move(server);
  }
  std::shared_ptr<grpc::Channel> Channel(const std::string& address) {
    return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  }
  static HealthCheckRequest Of(const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    return request;
  }
  // The status, or UNKNOWN with the call's own error in `error`.
  HealthCheckResponse::ServingStatus Check(Stub& stub, const std::string& service,
                                           absl::Status* error = nullptr) {
    Call call;
    HealthCheckResponse response;
    const grpc::Status status = stub.Check(call.get(), Of(service), &response);
    if (error != nullptr) *error = FromGrpc(status);
    return status.ok() ? response.status() : HealthCheckResponse::UNKNOWN;
  }

  std::atomic<ServingStatus> answer_ = ServingStatus::kServing;
  std::string asked_;
  TempFolder folder_;
  const std::string socket_ = "unix:" + (folder_ / "a.sock");
  HealthServiceImpl service_{[this](const std::string& service) {
    asked_ = service;
    return answer_.load();
  }};
  std::unique_ptr<GrpcServer> server_;
};

TEST_F(HealthServiceTest, EveryNameIsAskedForAndAnswered) {
  Start({socket_});
  Stub stub(Channel(socket_));
  EXPECT_EQ(Check(stub, "ckptd.v1.Checkpoint/ab12"), HealthCheckResponse::SERVING);
  EXPECT_EQ(asked_, "ckptd.v1.Checkpoint/ab12");
  answer_ = ServingStatus::kNotServing;
  EXPECT_EQ(Check(stub, ""), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthServiceTest, ANameThatIsNotKnownIsNotFoundAndTheKnownOnesAreNamed) {
  Start({socket_});
  Stub stub(Channel(socket_));
  answer_ = ServingStatus::kUnknown;
  absl::Status error;
  Check(stub, "nosuch", &error);
  EXPECT_THAT(error, FailsWith(absl::StatusCode::kNotFound, reason::kInvalidRequest));
  EXPECT_THAT(error, Says("liveness, ckptd.v1.Group, ckptd.v1.Checkpoint/NAME"));
}

TEST_F(HealthServiceTest, AWatchIsToldOfEachChangeAndOfTheEnd) {
  Start({socket_});
  Stub stub(Channel(socket_));
  answer_ = ServingStatus::kUnknown;
  Call call;
  const auto watch = stub.Watch(call.get(), Of("ckptd.v1.Checkpoint/ab12"));
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  answer_ = ServingStatus::kServing;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  service_.Stop();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_TRUE(watch->Finish().ok());
}

TEST_F(HealthServiceTest, NothingServesAfterTheEnd) {
  Start({socket_});
  Stub stub(Channel(socket_));
  service_.Stop();
  EXPECT_EQ(Check(stub, "liveness"), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthServiceTest, MoreWatchesThanThereAreThreadsForAreRefusedAndOthersGoOn) {
  Start({socket_});
  Stub stub(Channel(socket_));
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::unique_ptr<grpc::ClientReader<HealthCheckResponse>>> watches;
  HealthCheckResponse response;
  for (int i = 0; i < kMaxHealthWatches; ++i) {
    calls.push_back(std::make_unique<Call>());
    watches.push_back(stub.Watch(calls.back()->get(), Of("")));
    ASSERT_TRUE(watches.back()->Read(&response));
  }
  Call one_more;
  const auto refused = stub.Watch(one_more.get(), Of(""));
  EXPECT_FALSE(refused->Read(&response));
  EXPECT_THAT(FromGrpc(refused->Finish()),
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kTooManyWaiting));
  EXPECT_EQ(Check(stub, ""), HealthCheckResponse::SERVING);
  // A watch that ends makes room.
  calls[0]->get()->TryCancel();
  watches[0]->Finish();
  bool let_in = false;
  for (const Deadline end = Soon(); !let_in && Clock::now() < end;) {
    Call again;
    const auto watch = stub.Watch(again.get(), Of(""));
    let_in = watch->Read(&response);
    again.get()->TryCancel();
    watch->Finish();
  }
  EXPECT_TRUE(let_in);
  service_.Stop();
  for (size_t i = 1; i < watches.size(); ++i) {
    while (watches[i]->Read(&response)) continue;
    EXPECT_TRUE(watches[i]->Finish().ok());
  }
}

class ProbePort : public HealthServiceTest {
 protected:
  void SetUp() override {
    Start({.address = "127.0.0.1:0", .max_receive_bytes = 4096, .max_threads = 8, .only_probes = true});
    address_ = "127.0.0.1:" + std::to_string(server_->port());
  }
  std::string address_;
};

TEST_F(ProbePort, AnswersProbes) {
  Stub stub(Channel(address_));
  EXPECT_EQ(Check(stub, "liveness"), HealthCheckResponse::SERVING);
}

TEST_F(ProbePort, ServesNothingElse) {
  Call call;
  v1::GetDaemonInfoResponse response;
  v1::AdminService::Stub admin(Channel(address_));
  EXPECT_EQ(admin.GetDaemonInfo(call.get(), {}, &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ProbePort, TakesNoLongRequest) {
  Stub stub(Channel(address_));
  absl::Status error;
  Check(stub, std::string(5000, 'x'), &error);
  EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ckptd
