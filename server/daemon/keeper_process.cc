#include "server/daemon/keeper_process.h"

#include <poll.h>

#include <thread>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/daemon/child.h"
#include "server/keeper/keeper_client.h"

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kBetweenStarts{1};
constexpr std::chrono::milliseconds kPoll{2};
constexpr std::chrono::seconds kEndPatience{2};

}  // namespace

bool KeeperProcess::Connected() const {
  pollfd polled = {connection_.get(), 0, 0};
  return connection_.valid() && ::poll(&polled, 1, 0) == 0;
}

void KeeperProcess::Start() {
  ChildOptions child;
  child.program = program_;
  child.arguments = {name_, "keep", "--socket", socket_, fmt::format("--linger={}", linger_.count())};
  child.outlives = true;
  const auto pid = StartChild(child);
  if (pid.ok()) {
    started_.push_back(*pid);
  } else {
    Log(LogLevel::kWarn, "the keeper could not be started: {}", MessageOf(pid.status()));
  }
}

void KeeperProcess::Ensure(std::chrono::milliseconds patience) {
  if (socket_.empty() || Connected()) return;
  const bool ended = connection_.valid();
  connection_.Reset();
  if (Clock::now() < next_start_) return;
  if (ended) Log(LogLevel::kWarn, "the keeper has ended; another one gets what daemons still hold");
  next_start_ = Clock::now() + kBetweenStarts;
  const auto deadline = Clock::now() + patience;
  auto connection = ConnectToKeeper(socket_, deadline);
  if (!connection.ok()) Start();
  while (!connection.ok() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPoll);  // there is no event for a socket that is not there yet
    connection = ConnectToKeeper(socket_, deadline);
  }
  if (connection.ok()) {
    connection_ = *std::move(connection);
  } else {
    Log(LogLevel::kWarn, "the keeper does not listen yet; a daemon that ends now loses its shards: {}",
        MessageOf(connection.status()));
  }
}

void KeeperProcess::End() {
  if (connection_.valid()) EndKeeper(connection_.get(), Clock::now() + kEndPatience);
}

}  // namespace ckptd
