#include "server/transfer/digest_board.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

size_t BlocksOf(uint64_t tensor_bytes) {
  return static_cast<size_t>((tensor_bytes + kDigestBlockBytes - 1) / kDigestBlockBytes);
}

}  // namespace

uint64_t BlockBytes(uint64_t tensor_bytes, uint64_t block) {
  return std::min(kDigestBlockBytes, tensor_bytes - block * kDigestBlockBytes);
}

DigestBoard::DigestBoard(std::span<const TransferTarget> targets, std::span<const SlabMap> slabs)
    : targets_(targets), slabs_(slabs) {
  size_t total = 0;
  for (const TransferTarget& target : targets) {
    std::vector<size_t>& first = first_block_.emplace_back();
    for (const PlannedTensor& tensor : target.plan->tensors) {
      first.push_back(total);
      total += BlocksOf(tensor.bytes);
    }
  }
  blocks_ = std::vector<Block>(total);
}

const PlannedTensor& DigestBoard::tensor(const Destination& where) const {
  return targets_[where.target].plan->tensors[where.tensor];
}

size_t DigestBoard::BlockIndex(const Destination& where, uint64_t block) const {
  return first_block_[where.target][where.tensor] + static_cast<size_t>(block);
}

void DigestBoard::Store(const Destination& where, uint64_t block, uint64_t digest) {
  Block& slot = blocks_[BlockIndex(where, block)];
  slot.digest.store(digest, std::memory_order_relaxed);
  // This adds instead of setting: a plan that writes bytes twice must be found.
  slot.filled.fetch_add(BlockBytes(tensor(where).bytes, block), std::memory_order_acq_rel);
}

bool DigestBoard::Fill(const Destination& where, uint64_t block, uint64_t bytes) {
  Block& slot = blocks_[BlockIndex(where, block)];
  const uint64_t whole = BlockBytes(tensor(where).bytes, block);
  // Releases our bytes, and acquires those of the threads that filled before us.
  const uint64_t filled = slot.filled.fetch_add(bytes, std::memory_order_acq_rel) + bytes;
  if (filled < whole) return true;
  if (filled > whole) return false;
  if (slabs_[where.target].staged() != nullptr) {
    MutexLock lock(mutex_);
    unread_.push_back({where, block});
    return true;
  }
  Xxh3Stream stream;
  slabs_[where.target].ForEach(tensor(where).offset + block * kDigestBlockBytes, whole,
                               [&stream](const std::byte* data, size_t n) {
                                 stream.Update({data, n});
                               });
  slot.digest.store(stream.Value(), std::memory_order_relaxed);
  return true;
}

absl::Status DigestBoard::ReadStaged() {
  MutexLock lock(mutex_);
  std::vector<std::byte> scratch;
  for (const auto& [where, block] : unread_) {
    const uint64_t offset = tensor(where).offset + block * kDigestBlockBytes;
    const uint64_t whole = BlockBytes(tensor(where).bytes, block);
    CKPTD_ASSIGN_OR_RETURN(
        const auto data,
        slabs_[where.target].Read(offset, static_cast<size_t>(whole), scratch));
    blocks_[BlockIndex(where, block)].digest.store(Xxh3(data), std::memory_order_relaxed);
  }
  unread_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<uint64_t>>> DigestBoard::Combine() {
  CKPTD_RETURN_IF_ERROR(ReadStaged());
  std::vector<std::vector<uint64_t>> digests(targets_.size());
  std::vector<uint64_t> parts;
  for (size_t t = 0; t < targets_.size(); ++t) {
    const RankPlan& plan = *targets_[t].plan;
    for (size_t i = 0; i < plan.tensors.size(); ++i) {
      const uint64_t bytes = plan.tensors[i].bytes;
      parts.clear();
      for (size_t b = 0; b < BlocksOf(bytes); ++b) {
        const Block& block = blocks_[first_block_[t][i] + b];
        const uint64_t filled = block.filled.load(std::memory_order_acquire);
        if (filled != BlockBytes(bytes, b)) {
          return MakeError(
              absl::StatusCode::kInternal, reason::kCoverage,
              fmt::format("placing tensor {} of rank {}: {} of {} bytes of block {} were written; "
                          "this is a defect of the planner, report it with the layout",
                          plan.tensors[i].name, plan.rank, filled, BlockBytes(bytes, b), b),
              {{"tensor", plan.tensors[i].name}, {"rank", std::to_string(plan.rank)}});
        }
        parts.push_back(block.digest.load(std::memory_order_relaxed));
      }
      digests[t].push_back(parts.empty() ? TensorDigest({}) : CombineBlockDigests(parts));
    }
  }
  return digests;
}

}  // namespace ckptd
