// Predicts how long a load takes on given hardware, and which stage limits it. Pure arithmetic
// over rates. All stages overlap, so the slowest one determines the time.
#ifndef CKPTD_CLIENT_CLI_LOAD_MODEL_H_
#define CKPTD_CLIENT_CLI_LOAD_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ckptd {

// Measured rates in bytes per second. 0: does not exist.
struct Hardware {
  std::string name;
  uint32_t gpus_per_host = 1;
  double storage = 0;           // into one host
  double shared_storage = 0;    // from storage that all hosts share; 0: each host has its own
  double memory = 0;            // copies by the processors of a host: page cache to staging memory
  double link = 0;              // host memory to one GPU
  double links = 0;             // to all GPUs of a host together; 0: they are independent
  double fabric = 0;            // into or out of one GPU, from or to others of its host (NVLink)
  double network = 0;           // into or out of one host, through all its adapters (NCCL)
  double streams = 0;           // into or out of one host, through ckptd's own streams
  double fixed_seconds = 0.05;  // planning and agreement
};

enum class ModelSource : uint8_t { kStorage, kPageCache };
// As `--reader`.
enum class ModelReaders : uint8_t { kRank0, kPerNode, kAll };
// kDirect: readers copy to each GPU of their host over its own link, shared slices from the same
// staging memory, and stream to other hosts. kNccl: readers copy to their own GPU, which sends
// each shard once. Ranks with equal shards pass it on to each other.
enum class ModelWay : uint8_t { kDirect, kNccl };

// The bytes to be moved.
struct LoadShape {
  uint64_t storage_bytes = 0;        // needed by any rank, each byte once
  uint64_t distinct_bytes = 0;       // sum over ranks, equal shards once: what readers send by NCCL
  std::vector<uint64_t> rank_bytes;  // per rank; consecutive ranks are on one host
};

struct ModelStage {
  std::string stage;   // "storage", "memory", "link", "fabric", "network"
  std::string where;   // the busiest place of this stage, for people
  uint64_t bytes = 0;  // bytes that pass through it
  double rate = 0;     // bytes per second
  double seconds = 0;
};

struct LoadPrediction {
  ModelWay way = ModelWay::kDirect;
  double seconds = 0;
  std::vector<ModelStage> stages;  // slowest first: it determines the time
};

// Errors: InvalidArgument INVALID_REQUEST if there are no ranks, or if bytes must pass a stage
// for which the hardware has no rate.
absl::StatusOr<LoadPrediction> PredictLoad(const Hardware& hardware, const LoadShape& shape,
                                           ModelSource source, ModelReaders readers, ModelWay way);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CLI_LOAD_MODEL_H_
