#include "server/daemon/metrics_service.h"

#include <utility>

#include "common/base/at_once.h"
#include "common/base/status.h"
#include "server/daemon/run_directory.h"
#include "server/metrics/families.h"
#include "server/metrics/node_metrics.h"

namespace ckptd {
namespace {

// Prometheus gives up after 10 s by default.
constexpr std::chrono::seconds kDaemonAnswers{2};
constexpr size_t kMostAtOnce = 16;

std::string SocketOf(Config config, uint32_t rank) {
  config.rank = rank;
  return PathsOf(config).metrics;
}

std::string RenderHost(const Config& config, const std::vector<uint32_t>& ranks, TextFormat format) {
  std::vector<std::string> texts(ranks.size());
  AtOnce(ranks.size(), kMostAtOnce, [&](size_t i) {
    auto fetched = FetchMetrics(SocketOf(config, ranks[i]), format, kDaemonAnswers);
    if (fetched.ok()) texts[i] = *std::move(fetched);
  });
  Family up{metric::kDaemonUp, {}};
  for (size_t i = 0; i < ranks.size(); ++i) {
    up.samples.push_back({"",
                          {{"group", config.job}, {"rank", std::to_string(ranks[i])}},
                          texts[i].empty() ? 0.0 : 1.0});
  }
  texts.push_back(WriteMetrics({up}, {}, format));
  return MergeMetrics(texts, format);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsPort>> ServeMetrics(const Config& config, Node& node,
                                                          const MetricsRecorder* recorder) {
  CKPTD_ASSIGN_OR_RETURN(const std::string address, MetricsAddress(config.metrics));
  if (address.empty()) return nullptr;
  return MetricsPort::Start(address, PathsOf(config).metrics, [&node, recorder](TextFormat format) {
    std::vector<Family> families = CollectNode(node);
    for (Family& family : recorder->Collect()) families.push_back(std::move(family));
    return WriteMetrics(families, CommonLabels(node.options().identity), format);
  });
}

absl::StatusOr<std::unique_ptr<MetricsPort>> ServeHostMetrics(const Config& config,
                                                              std::vector<uint32_t> ranks) {
  CKPTD_ASSIGN_OR_RETURN(const std::string address, MetricsAddress(config.metrics));
  if (address.empty() || address == kMetricsSocket) return nullptr;
  return MetricsPort::Start(address, "", [config, ranks = std::move(ranks)](TextFormat format) {
    return RenderHost(config, ranks, format);
  });
}

}  // namespace ckptd
