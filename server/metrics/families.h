// Every family of metrics that a daemon has. deploy/observability/README.md explains each.
#ifndef CKPTD_SERVER_METRICS_FAMILIES_H_
#define CKPTD_SERVER_METRICS_FAMILIES_H_

#include "server/metrics/metric.h"

namespace ckptd::metric {

inline constexpr MetricSpec kBuildInfo{"ckptd_build_info", MetricType::kGauge, "",
                                       "Always 1; its labels say what runs."};

// By `ckptd launch`, for each daemon of its host.
inline constexpr MetricSpec kDaemonUp{"ckptd_daemon_up", MetricType::kGauge, "",
                                      "1 if the daemon of that rank has answered launch."};

// --- the group ---
inline constexpr MetricSpec kReady{"ckptd_ready", MetricType::kGauge, "",
                                   "1 if the group is complete and the daemon takes work."};
inline constexpr MetricSpec kDraining{"ckptd_draining", MetricType::kGauge, "",
                                      "1 if the daemon was told to take nothing new."};
inline constexpr MetricSpec kWorldSize{"ckptd_world_size", MetricType::kGauge, "",
                                       "Ranks that the group has when it is complete."};
inline constexpr MetricSpec kMembers{"ckptd_group_members", MetricType::kGauge, "",
                                     "Ranks in the group now, itself included. Rank 0 alone."};
inline constexpr MetricSpec kEpoch{"ckptd_group_epoch", MetricType::kGauge, "",
                                   "Grows whenever a rank joins or is lost; 0 before the first."};

// --- memory ---
inline constexpr MetricSpec kBudget{"ckptd_memory_budget_bytes", MetricType::kGauge, "bytes",
                                    "Most memory for shards."};
inline constexpr MetricSpec kUsed{"ckptd_memory_used_bytes", MetricType::kGauge, "bytes",
                                  "Memory of shards."};
inline constexpr MetricSpec kLingering{"ckptd_memory_lingering_bytes", MetricType::kGauge, "bytes",
                                       "Memory of dropped shards that clients still map."};
inline constexpr MetricSpec kArena{"ckptd_arena_bytes", MetricType::kGauge, "bytes",
                                   "Host memory that is faulted in, used or free."};
inline constexpr MetricSpec kArenaTarget{"ckptd_arena_target_bytes", MetricType::kGauge, "bytes",
                                         "Size that the arena is filled to ahead of loads."};
inline constexpr MetricSpec kHugePages{"ckptd_arena_huge_page_bytes", MetricType::kGauge, "bytes",
                                       "The arena's memory in huge pages."};
inline constexpr MetricSpec kStaging{"ckptd_staging_bytes", MetricType::kGauge, "bytes",
                                     "Pinned host memory that bytes for a GPU pass through."};
inline constexpr MetricSpec kHostTierBudget{"ckptd_host_tier_budget_bytes", MetricType::kGauge, "bytes",
                                            "Most host memory for copies of shards of a GPU."};
inline constexpr MetricSpec kHostTierUsed{"ckptd_host_tier_used_bytes", MetricType::kGauge, "bytes",
                                          "Host memory of copies of shards of a GPU."};
inline constexpr MetricSpec kEvictions{"ckptd_evictions", MetricType::kCounter, "",
                                       "Checkpoints that were evicted for others."};
inline constexpr MetricSpec kEvictedBytes{"ckptd_evicted_bytes", MetricType::kCounter, "bytes",
                                          "Memory of evicted checkpoints."};

// --- checkpoints and clients ---
inline constexpr MetricSpec kCheckpoints{"ckptd_checkpoints", MetricType::kGauge, "",
                                         "Checkpoints of this rank, by state."};
inline constexpr MetricSpec kLeases{"ckptd_leases", MetricType::kGauge, "",
                                    "Leases that clients hold on this rank, by mode."};
inline constexpr MetricSpec kAttachSeconds{
    "ckptd_attach_seconds", MetricType::kHistogram, "seconds",
    "From the lease of a client until its descriptors have left, by mode."};

// --- loads; but for the first, of rank 0 alone ---
inline constexpr MetricSpec kLoadsActive{"ckptd_loads_active", MetricType::kGauge, "",
                                         "Loads that have not ended, by the stage they are in."};
inline constexpr MetricSpec kLoads{"ckptd_loads", MetricType::kCounter, "",
                                   "Loads that have ended, by outcome and by the reason of failures."};
inline constexpr MetricSpec kLoadSeconds{"ckptd_load_seconds", MetricType::kHistogram, "seconds",
                                         "Time of a load's stages together, by outcome."};
inline constexpr MetricSpec kStageSeconds{"ckptd_load_stage_seconds", MetricType::kHistogram, "seconds",
                                          "Time of each stage of loads."};
inline constexpr MetricSpec kLoadBytes{"ckptd_load_bytes", MetricType::kCounter, "bytes",
                                       "Bytes that loads have placed in shards, over all ranks."};
inline constexpr MetricSpec kReadBytes{"ckptd_load_read_bytes", MetricType::kCounter, "bytes",
                                       "Bytes that loads have read from storage, by way."};
inline constexpr MetricSpec kSentBytes{
    "ckptd_load_sent_bytes", MetricType::kCounter, "bytes",
    "Bytes that readers have placed in, or sent to, shards of other ranks."};
inline constexpr MetricSpec kLoadRate{"ckptd_load_bytes_per_second", MetricType::kGauge, "",
                                      "Mean rate of the last load that has moved bytes."};
inline constexpr MetricSpec kSlowestRank{"ckptd_load_slowest_rank", MetricType::kGauge, "",
                                         "Rank that lacks most of the running load; -1: none."};
inline constexpr MetricSpec kSlowFileRate{
    "ckptd_load_slow_file_bytes_per_second", MetricType::kGauge, "",
    "Rate of a file that is much slower than the others of the running load; no sample: none is."};

}  // namespace ckptd::metric

#endif  // CKPTD_SERVER_METRICS_FAMILIES_H_
