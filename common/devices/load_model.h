// How long a load takes on given hardware, and what bounds it. Pure arithmetic over rates:
// every stage overlaps all others, so the slowest one is the load's time.
#ifndef CKPTD_COMMON_DEVICES_LOAD_MODEL_H_
#define CKPTD_COMMON_DEVICES_LOAD_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ckptd {

// Rates in bytes per second, as one measures them; 0: there is no such thing.
struct Hardware {
  std::string name;
  uint32_t gpus_per_host = 1;
  double storage = 0;         // into one host
  double shared_storage = 0;  // out of storage that all hosts share; 0: each has its own
  double memory = 0;         // copied by the processors of a host: page cache to staging memory
  double link = 0;           // host memory to one GPU
  double links = 0;          // to all GPUs of a host together; 0: they do not share
  double fabric = 0;         // out of, or into, one GPU, to others of its host (NVLink)
  double network = 0;        // out of, or into, one host, by all its adapters (NCCL)
  double streams = 0;        // out of, or into, one host, by ckptd's own streams
  double fixed_seconds = 0.05;  // planning and agreeing
};

enum class ModelSource : uint8_t { kStorage, kPageCache };
// As `--reader`.
enum class ModelReaders : uint8_t { kRank0, kPerNode, kAll };
// kDirect: readers copy to each GPU of their host over its own link, what several of them
// want out of the same staging memory, and stream to other hosts. kNccl: readers copy to
// their own GPU, which sends each shard once; who has received one passes it on to ranks
// whose shards are equal.
enum class ModelWay : uint8_t { kDirect, kNccl };

// What is to be moved.
struct LoadShape {
  uint64_t storage_bytes = 0;        // needed by anybody, each byte once
  uint64_t distinct_bytes = 0;       // of all ranks, equal shards once: what readers send by NCCL
  std::vector<uint64_t> rank_bytes;  // per rank; hosts have consecutive ranks
};

struct ModelStage {
  std::string stage;   // "storage", "memory", "link", "fabric", "network"
  std::string where;   // the busiest of its kind, for people
  uint64_t bytes = 0;  // that pass there
  double rate = 0;     // bytes per second
  double seconds = 0;
};

struct LoadPrediction {
  ModelWay way = ModelWay::kDirect;
  double seconds = 0;
  std::vector<ModelStage> stages;  // slowest first: it bounds the load
};

// Errors: InvalidArgument INVALID_REQUEST for no ranks, or for bytes that have to pass
// where the hardware has no rate.
absl::StatusOr<LoadPrediction> PredictLoad(const Hardware& hardware, const LoadShape& shape,
                                           ModelSource source, ModelReaders readers, ModelWay way);

}  // namespace ckptd

#endif  // CKPTD_COMMON_DEVICES_LOAD_MODEL_H_
