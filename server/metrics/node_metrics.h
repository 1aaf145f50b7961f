// What a daemon has at this moment, as metrics.
#ifndef CKPTD_SERVER_METRICS_NODE_METRICS_H_
#define CKPTD_SERVER_METRICS_NODE_METRICS_H_

#include <vector>

#include "server/metrics/metric.h"
#include "server/node/node.h"

namespace ckptd {

// Thread-safe, does not wait for loads.
std::vector<Family> CollectNode(Node& node);

// The labels of all samples of that daemon.
Labels CommonLabels(const MemberIdentity& identity);

}  // namespace ckptd

#endif  // CKPTD_SERVER_METRICS_NODE_METRICS_H_
