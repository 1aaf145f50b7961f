#include "server/node/verify_shard.h"

#include <cstdint>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

absl::Status TakenMeanwhile(const std::string& name) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kTaken,
                   fmt::format("verifying {}: an EXCLUSIVE client took its memory meanwhile; load "
                               "the source again",
                               name),
                   {{"checkpoint", name}});
}

// Offsets of tensors after which padding is not zero. Uses the table of everything in the memory,
// because a view may leave out tensors of its owner.
absl::StatusOr<std::set<uint64_t>> DirtyOffsets(const ShardLeases::Held& held, const SlabView& view) {
  const RankPlan& plan = held.whole->plan;
  CKPTD_ASSIGN_OR_RETURN(const std::set<uint32_t> dirty, DirtyPadding(plan, view));
  std::set<uint64_t> offsets;
  for (const uint32_t i : dirty) offsets.insert(plan.tensors[i].offset);
  return offsets;
}

}  // namespace

absl::StatusOr<Verification> VerifyShard(const std::string& name, const ShardLeases::Held& held) {
  const std::shared_ptr<const SlabView> view = held.memory->Read();
  if (view == nullptr) return TakenMeanwhile(name);
  Verification result;
  const RankPlan& plan = held.shard->plan;
  CKPTD_ASSIGN_OR_RETURN(const std::set<uint64_t> dirty, DirtyOffsets(held, *view));
  for (uint32_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& tensor = plan.tensors[i];
    result.bytes += tensor.bytes;
    ++result.tensors;
    CKPTD_ASSIGN_OR_RETURN(const uint64_t digest,
                           DigestInSlab(*view, tensor.offset, tensor.bytes));
    // A tensor without bytes may have the offset of the next one.
    const bool spoilt = tensor.bytes > 0 && dirty.count(tensor.offset) > 0;
    if (spoilt || digest != held.shard->digests[i]) {
      result.mismatched.push_back(tensor.name);
      const Shard& shard = *held.shard;
      const bool read = shard.file_of[i] < shard.paths.size();
      result.files.push_back(read ? shard.paths[shard.file_of[i]] : "");
    }
  }
  // A client that took the shard meanwhile may have written to it already.
  if (held.memory->GivenUp()) return TakenMeanwhile(name);
  return result;
}

}  // namespace ckptd
