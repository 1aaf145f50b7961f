#include "server/daemon/metrics_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>

#include "common/base/reasons.h"
#include "server/daemon/config.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::chrono::seconds kPatience{30};

TEST(MetricsAddress, IsOfTheLoopbackInterfaceUnlessAHostIsNamed) {
  EXPECT_EQ(MetricsAddress(Config().metrics).value(), "") << "by default there is none";
  EXPECT_EQ(MetricsAddress("9464").value(), "127.0.0.1:9464");
  EXPECT_EQ(MetricsAddress("0.0.0.0:9464").value(), "0.0.0.0:9464");
  EXPECT_EQ(MetricsAddress("socket").value(), kMetricsSocket);
  for (const char* const text : {"", "http", "9464x", ":9464", "65536"}) {
    EXPECT_THAT(MetricsAddress(text),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid))
        << text;
  }
}

class MetricsPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto port = MetricsPort::Start(kMetricsSocket, path_, [](TextFormat format) {
      return format == TextFormat::kOpenMetrics ? std::string("open\n") : std::string("text\n");
    });
    ASSERT_OK(port);
    port_ = *std::move(port);
  }
  UniqueFd Connect() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  // All that the port says to that.
  std::string Ask(const std::string& request) const {
    const UniqueFd fd = Connect();
    EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::string answer;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(fd.get(), buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
    return answer;
  }

  TempFolder folder_;
  const std::string path_ = folder_.path() + "/m.sock";
  std::unique_ptr<MetricsPort> port_;
};

TEST_F(MetricsPortTest, GivesMetricsInTheFormatThatIsAskedFor) {
  const std::string answer = Ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4;"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 5\r\n"));
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\ntext\n"));
  EXPECT_EQ(FetchMetrics(path_, TextFormat::kPrometheus, kPatience).value(), "text\n");
  EXPECT_EQ(FetchMetrics(path_, TextFormat::kOpenMetrics, kPatience).value(), "open\n");
}

TEST_F(MetricsPortTest, HasNothingElse) {
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("GET /metricsx HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask("HEAD /metrics?x=1 HTTP/1.1\r\n\r\n"), ::testing::EndsWith("\r\n\r\n"));
}

TEST_F(MetricsPortTest, RefusesARequestWithoutEnd) {
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nX: " + std::string(8192, 'x')), StartsWith("HTTP/1.1 431 "));
}

TEST_F(MetricsPortTest, IsNotHeldUpByCallersThatSayNothingOrHalf) {
  const UniqueFd mute = Connect();
  const UniqueFd half = Connect();
  ASSERT_EQ(::send(half.get(), "GET", 3, MSG_NOSIGNAL), 3);
  EXPECT_OK(FetchMetrics(path_, TextFormat::kPrometheus, kPatience));
  char byte = 0;
  EXPECT_EQ(::read(half.get(), &byte, 1), 0) << "it is closed without an answer";
}

TEST_F(MetricsPortTest, IsGoneWithItsOwner) {
  port_.reset();
  EXPECT_THAT(FetchMetrics(path_, TextFormat::kPrometheus, kPatience),
              FailsWith(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable));
}

}  // namespace
}  // namespace ckptd
