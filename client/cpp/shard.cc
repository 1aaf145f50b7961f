#include "client/cpp/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
inline namespace client {
namespace {

absl::Status Bad(std::string_view tensor, std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidReply,
                   fmt::format("attaching a shard: tensor {} {}; client and daemon do not fit "
                               "together, update the older one",
                               tensor, why),
                   {{"tensor", std::string(tensor)}});
}

}  // namespace

Shard::Shard(Attached attached, ShardTable table, AttachMode mode, std::string lease)
    : attached_(std::move(attached)),
      table_(std::move(table)),
      by_name_(table_.tensors.size()),
      mode_(mode),
      lease_(std::move(lease)) {
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  const auto& tensors = table_.tensors;
  const auto less = [&tensors](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; };
  if (!std::is_sorted(by_name_.begin(), by_name_.end(), less)) {
    std::sort(by_name_.begin(), by_name_.end(), less);
  }
  std::sort(table_.aliases.begin(), table_.aliases.end());
}

absl::StatusOr<Shard> Shard::Create(Attached attached, ShardTable table, AttachMode mode,
                                    std::string lease) {
  const std::byte* base = attached.mapping.data();
  if (attached.device.valid()) {
    base = reinterpret_cast<const std::byte*>(attached.device.address());
  }
  for (ShardTensor& tensor : table.tensors) {
    if (tensor.bytes > tensor.padded_bytes || tensor.padded_bytes > attached.slab_bytes ||
        tensor.offset > attached.slab_bytes - tensor.padded_bytes) {
      return Bad(tensor.name, "lies outside of the slab");
    }
    // An empty tensor of an empty shard has no address.
    tensor.data = base == nullptr ? nullptr : base + tensor.offset;
  }
  Shard shard(std::move(attached), std::move(table), mode, std::move(lease));
  const auto& tensors = shard.table_.tensors;
  for (size_t i = 1; i < shard.by_name_.size(); ++i) {
    const std::string& name = tensors[shard.by_name_[i]].name;
    if (tensors[shard.by_name_[i - 1]].name == name) return Bad(name, "comes twice");
  }
  for (const auto& alias : shard.table_.aliases) {
    if (alias.second >= tensors.size()) return Bad(alias.first, "is an alias of nothing");
  }
  return shard;
}

const ShardTensor* Shard::Find(std::string_view name) const {
  const auto& tensors = table_.tensors;
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&tensors](uint32_t index, std::string_view wanted) { return tensors[index].name < wanted; });
  if (at != by_name_.end() && tensors[*at].name == name) return &tensors[*at];
  const auto alias = std::lower_bound(
      table_.aliases.begin(), table_.aliases.end(), name,
      [](const auto& entry, std::string_view wanted) { return entry.first < wanted; });
  if (alias == table_.aliases.end() || alias->first != name) return nullptr;
  return &tensors[alias->second];
}

absl::Status Shard::Read(const ShardTensor& tensor, uint64_t offset,
                         std::span<std::byte> out) const {
  if (offset > tensor.padded_bytes || out.size() > tensor.padded_bytes - offset) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("reading {} bytes at {} of tensor {}: it has {}", out.size(),
                                 offset, tensor.name, tensor.padded_bytes),
                     {{"tensor", tensor.name}});
  }
  if (attached_.device.valid()) return attached_.device.Read(tensor.offset + offset, out);
  if (!out.empty()) std::memcpy(out.data(), tensor.data + offset, out.size());
  return absl::OkStatus();
}

std::span<std::byte> Shard::MutableBytes(const ShardTensor& tensor) const {
  if (mode_ == AttachMode::kShared || !attached_.mapping.valid()) return {};
  return {attached_.mapping.data() + tensor.offset, tensor.padded_bytes};
}

void Shard::Release() {
  table_ = ShardTable();
  by_name_.clear();
  attached_.Reset();
}

}  // namespace client
}  // namespace ckptd
