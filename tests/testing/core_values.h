// Requests, plans and whole checkpoints of the daemon for tests, without files.
#ifndef CKPTD_TESTS_TESTING_CORE_VALUES_H_
#define CKPTD_TESTS_TESTING_CORE_VALUES_H_

#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "server/catalog/catalog.h"
#include "server/protocol/domain.h"
#include "tests/testing/small_memory.h"

namespace ckptd {

// Far enough that only a broken test reaches it.
inline Deadline Soon() { return Clock::now() + std::chrono::seconds(60); }

inline LoadRequest RuleRequest(const std::string& rules = "replicate:1",
                               const std::string& source = "/models/m") {
  LoadRequest request;
  request.source = source;
  request.layout = rules;
  return request;
}

// One rank's statement that it wants `tensor` whole.
inline LoadRequest RankRequest(uint32_t rank, uint32_t world_size,
                               const std::string& tensor = "w") {
  RankLayout layout;
  layout.rank = rank;
  layout.world_size = world_size;
  layout.shardings.resize(1);
  layout.targets.resize(1);
  layout.targets[0].name = tensor;
  LoadRequest request = RuleRequest();
  request.layout = std::make_shared<const RankLayout>(std::move(layout));
  return request;
}

// A plan of one U8 tensor "w".
inline RankPlan PlanOf(uint64_t bytes, uint64_t digest = 1) {
  RankPlan plan;
  plan.slab_bytes = bytes;
  plan.tensor_bytes = bytes;
  plan.digest = digest;
  PlannedTensor tensor;
  tensor.name = "w";
  tensor.dtype = Dtype::kU8;
  tensor.shape = {bytes};
  tensor.bytes = bytes;
  tensor.padded_bytes = bytes;
  plan.tensors.push_back(std::move(tensor));
  return plan;
}

// The same, as a rank keeps it.
inline Shard ShardOf(uint64_t bytes, uint64_t digest = 1) {
  Shard shard;
  shard.plan = PlanOf(bytes, digest);
  return shard;
}

inline PrepareCall CallOf(const std::string& name, const LoadRequest& request) {
  PrepareCall call;
  call.epoch = 1;
  call.name = name;
  call.request = request;
  CheckpointIndex index;
  index.source = request.source;
  index.files.push_back({request.source + "/a.safetensors", 100, "2", "4", "1", 3});
  call.index = std::make_shared<const CheckpointIndex>(std::move(index));
  call.rank_digest = 1;
  call.plan_digest = 2;
  call.request_digests = {RequestDigest(request)};
  return call;
}

inline CommitCall CommitOf(const std::string& name) {
  CommitCall call;
  call.epoch = 1;
  call.name = name;
  call.digests = {7};
  return call;
}

// Takes `name` from nothing to ACTIVE.
inline absl::Status MakeActive(Catalog& catalog, const std::string& name,
                               const LoadRequest& request, uint64_t bytes = kSmallSegment) {
  catalog.Begin(name, request);
  CKPTD_RETURN_IF_ERROR(catalog.eviction().Allocate(CallOf(name, request), ShardOf(bytes)).status());
  return catalog.Publish(CommitOf(name));
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_CORE_VALUES_H_
