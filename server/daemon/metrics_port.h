// Serves metrics by HTTP (--metrics): GET /metrics and nothing else, on a TCP address or a Unix
// socket. One thread answers one request after the other.
#ifndef CKPTD_SERVER_DAEMON_METRICS_PORT_H_
#define CKPTD_SERVER_DAEMON_METRICS_PORT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/fd_passing.h"
#include "common/base/posix.h"
#include "server/metrics/exposition.h"
#include "server/rpc/acceptor.h"

namespace ckptd {

inline constexpr char kMetricsSocket[] = "socket";

// Where `text` (--metrics) asks for metrics: "host:port", where a port alone is one of the loopback
// interface; kMetricsSocket; empty for "0": nowhere. Errors: CONFIG_INVALID.
absl::StatusOr<std::string> MetricsAddress(const std::string& text);

class MetricsPort {
 public:
  using Render = std::function<std::string(TextFormat)>;
  // `address`: as MetricsAddress gives it, not empty; kMetricsSocket listens at the path `socket`,
  // with mode 0600. `render` is called on the port's thread. Errors: CONFIG_INVALID where the
  // address cannot be bound, ResourceExhausted without a thread.
  static absl::StatusOr<std::unique_ptr<MetricsPort>> Start(const std::string& address,
                                                            const std::string& socket, Render render);
  MetricsPort(const MetricsPort&) = delete;
  MetricsPort& operator=(const MetricsPort&) = delete;

 private:
  explicit MetricsPort(Render render) : render_(std::move(render)) {}
  // Reads a request, answers it and ends the connection.
  void Serve(int connection) const;
  std::string Answer(const std::string& request) const;

  const Render render_;
  UniqueFd tcp_;
  UnixListener unix_;
  std::unique_ptr<Acceptor> acceptor_;  // ends first
};

// The metrics that a daemon of this host serves at that socket. Errors: Unavailable
// DAEMON_UNREACHABLE, also for an answer that is none, or that takes longer than `patience`.
absl::StatusOr<std::string> FetchMetrics(const std::string& socket, TextFormat format,
                                         std::chrono::milliseconds patience);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_METRICS_PORT_H_
