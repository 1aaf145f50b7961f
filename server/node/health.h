// How well a daemon is, by the names that grpc.health.v1 asks about. Thread-safe, does not block.
#ifndef CKPTD_SERVER_NODE_HEALTH_H_
#define CKPTD_SERVER_NODE_HEALTH_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "server/node/node.h"

namespace ckptd {

// kUnknown: there is no such name here, or not yet.
enum class ServingStatus : uint8_t { kServing, kNotServing, kUnknown };

// The process answers. True however long a load runs, and while it drains.
inline constexpr std::string_view kLivenessService = "liveness";
// The group is complete.
inline constexpr std::string_view kGroupService = "ckptd.v1.Group";
// Followed by the name of a checkpoint, its id, or the path of a source: that checkpoint, or the
// newest one of that source, is ACTIVE.
inline constexpr std::string_view kCheckpointService = "ckptd.v1.Checkpoint/";

// A daemon that drains is kNotServing in all but liveness: it takes no new work.
ServingStatus HealthOf(Node& node, std::string_view service);

}  // namespace ckptd

#endif  // CKPTD_SERVER_NODE_HEALTH_H_
