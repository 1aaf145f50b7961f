#include "client/cli/load_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// The bytes of one load, by host.
class Traffic {
 public:
  Traffic(const Hardware& hardware, const LoadShape& shape, ModelSource source,
          ModelReaders readers, ModelWay way)
      : hardware_(hardware), shape_(shape), source_(source), readers_(readers), way_(way) {
    for (size_t first = 0; first < shape.rank_bytes.size(); first += hardware.gpus_per_host) {
      const auto begin = shape.rank_bytes.begin() + static_cast<ptrdiff_t>(first);
      const size_t count =
          std::min<size_t>(hardware.gpus_per_host, shape.rank_bytes.size() - first);
      hosts_.push_back(std::accumulate(begin, begin + static_cast<ptrdiff_t>(count), uint64_t{0}));
    }
    all_ = std::accumulate(hosts_.begin(), hosts_.end(), uint64_t{0});
  }

  std::vector<ModelStage> Stages() const {
    std::vector<ModelStage> stages;
    if (source_ == ModelSource::kStorage) AddStorage(stages);
    AddMemory(stages);
    AddLinks(stages);
    if (way_ == ModelWay::kNccl) AddFabric(stages);
    AddNetwork(stages);
    return stages;
  }

 private:
  size_t hosts() const { return hosts_.size(); }
  size_t ranks() const { return shape_.rank_bytes.size(); }
  // The distinct bytes among those that host `h` gets: all of them, or with replicas at most the
  // checkpoint's.
  uint64_t DistinctOf(size_t h) const { return std::min(shape_.storage_bytes, hosts_[h]); }
  // The bytes that a single reader on host `h` writes: once for all GPUs of its own host, and
  // once for each rank on other hosts.
  uint64_t PlacedBy(size_t h) const { return DistinctOf(h) + (all_ - hosts_[h]); }
  uint64_t LargestPlaced() const {
    uint64_t most = 0;
    for (size_t h = 0; h < hosts(); ++h) most = std::max(most, PlacedBy(h));
    return most;
  }
  uint64_t LargestOtherHost() const {
    return hosts() == 1 ? 0 : *std::max_element(hosts_.begin() + 1, hosts_.end());
  }
  // The distinct bytes among `bytes` that a reader's GPU sends.
  uint64_t DistinctTo(uint64_t bytes) const { return std::min(shape_.distinct_bytes, bytes); }
  uint64_t LargestDistinct() const {
    uint64_t most = 0;
    for (size_t h = 0; h < hosts(); ++h) most = std::max(most, DistinctOf(h));
    return most;
  }
  uint64_t LargestHost() const { return *std::max_element(hosts_.begin(), hosts_.end()); }
  uint64_t LargestRank() const {
    return *std::max_element(shape_.rank_bytes.begin(), shape_.rank_bytes.end());
  }
  // The bytes that the reader of one host, or of one rank, reads from the checkpoint.
  uint64_t ReadByHost() const {
    if (readers_ == ModelReaders::kRank0) return shape_.storage_bytes;
    if (readers_ == ModelReaders::kPerNode) return LargestDistinct();
    return shape_.storage_bytes / hosts();
  }
  uint64_t ReadByAll() const {
    if (readers_ != ModelReaders::kPerNode) return shape_.storage_bytes;
    uint64_t sum = 0;
    for (size_t h = 0; h < hosts(); ++h) sum += DistinctOf(h);
    return sum;
  }
  // If every host sends `bytes` in equal parts to all hosts, the part that leaves it.
  uint64_t Leaving(uint64_t bytes) const { return bytes / hosts() * (hosts() - 1); }

  static void Add(std::vector<ModelStage>& stages, std::string stage, std::string where,
                  uint64_t bytes, double rate) {
    if (bytes > 0) stages.push_back({std::move(stage), std::move(where), bytes, rate, 0});
  }

  void AddStorage(std::vector<ModelStage>& stages) const {
    Add(stages, "storage", readers_ == ModelReaders::kRank0 ? "read by rank 0" : "read by one host",
        ReadByHost(), hardware_.storage);
    if (hardware_.shared_storage > 0) {
      Add(stages, "storage", "shared by all hosts", ReadByAll(), hardware_.shared_storage);
    }
  }

  void AddMemory(std::vector<ModelStage>& stages) const {
    uint64_t bytes = ReadByHost();
    if (way_ == ModelWay::kDirect) {
      // Each rank on another host places its own bytes.
      if (readers_ == ModelReaders::kRank0) bytes = std::max(PlacedBy(0), LargestOtherHost());
      if (readers_ == ModelReaders::kPerNode) bytes = LargestDistinct();
      if (readers_ == ModelReaders::kAll) bytes = LargestPlaced() / hosts() + Leaving(LargestHost());
    }
    Add(stages, "memory", "copied by the processors of one host", bytes, hardware_.memory);
  }

  void AddLinks(std::vector<ModelStage>& stages) const {
    if (way_ == ModelWay::kDirect) {
      Add(stages, "link", "host memory to one GPU", LargestRank(), hardware_.link);
      if (hardware_.links > 0) {
        Add(stages, "link", "host memory to all GPUs of a host", LargestHost(), hardware_.links);
      }
      return;
    }
    const uint64_t by_gpu = readers_ == ModelReaders::kAll
                                ? shape_.storage_bytes / ranks()
                                : ReadByHost();
    Add(stages, "link", "host memory to a reader's GPU", by_gpu, hardware_.link);
  }

  void AddFabric(std::vector<ModelStage>& stages) const {
    if (hardware_.gpus_per_host == 1) return;
    const uint64_t host = readers_ == ModelReaders::kRank0 ? hosts_.front() : LargestHost();
    const uint64_t others = host - std::min(host, shape_.rank_bytes.front());
    const bool all = readers_ == ModelReaders::kAll;
    const uint64_t out = all ? DistinctTo(host) / ranks() : DistinctTo(others);
    Add(stages, "fabric", "out of a reader's GPU", out, hardware_.fabric);
    Add(stages, "fabric", "into one GPU", ranks() > 1 ? LargestRank() : 0, hardware_.fabric);
  }

  void AddNetwork(std::vector<ModelStage>& stages) const {
    if (hosts() == 1 || readers_ == ModelReaders::kPerNode) return;
    const double rate = way_ == ModelWay::kNccl ? hardware_.network : hardware_.streams;
    if (readers_ == ModelReaders::kAll) {
      Add(stages, "network", "out of one host", Leaving(all_ / hosts()), rate);
      Add(stages, "network", "into one host", Leaving(LargestHost()), rate);
      return;
    }
    if (way_ == ModelWay::kDirect) {
      Add(stages, "network", "out of rank 0's host", all_ - hosts_.front(), rate);
    } else {
      // One GPU sends, through the nearest adapter. The first of several equal shards is on its
      // own host.
      const uint64_t out = shape_.distinct_bytes - DistinctTo(hosts_.front());
      Add(stages, "network", "out of rank 0's GPU", out, rate / hardware_.gpus_per_host);
    }
    Add(stages, "network", "into one host", LargestOtherHost(), rate);
  }

  const Hardware& hardware_;
  const LoadShape& shape_;
  const ModelSource source_;
  const ModelReaders readers_;
  const ModelWay way_;
  std::vector<uint64_t> hosts_;  // bytes for its ranks, per host
  uint64_t all_ = 0;
};

absl::Status Refuse(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   "predicting a load: " + why);
}

}  // namespace

absl::StatusOr<LoadPrediction> PredictLoad(const Hardware& hardware, const LoadShape& shape,
                                           ModelSource source, ModelReaders readers,
                                           ModelWay way) {
  if (shape.rank_bytes.empty() || hardware.gpus_per_host == 0) {
    return Refuse("there are no ranks, or hosts have no GPUs");
  }
  LoadPrediction prediction;
  prediction.way = way;
  prediction.stages = Traffic(hardware, shape, source, readers, way).Stages();
  for (ModelStage& stage : prediction.stages) {
    if (!(stage.rate > 0)) {
      return Refuse(fmt::format("{} bytes have to pass the {} ({}), for which {} has no rate; give "
                                "one, or choose another way",
                                stage.bytes, stage.stage, stage.where, hardware.name));
    }
    stage.seconds = static_cast<double>(stage.bytes) / stage.rate;
  }
  std::stable_sort(prediction.stages.begin(), prediction.stages.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  prediction.seconds = hardware.fixed_seconds;
  if (!prediction.stages.empty()) prediction.seconds += prediction.stages.front().seconds;
  return prediction;
}

}  // namespace ckptd
