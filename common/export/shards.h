// How tensors are spread over files of a limited size: the rule of huggingface_hub's
// split_torch_state_dict_into_shards, which accelerate's save_model and transformers'
// save_pretrained use. Pure.
#ifndef CKPTD_COMMON_EXPORT_SHARDS_H_
#define CKPTD_COMMON_EXPORT_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/export/content.h"

namespace ckptd {

inline constexpr uint64_t kDefaultShardBytes = 5'000'000'000;

// "5GB", "1.5MB": a number and TB, GB, MB or KB, powers of ten, whatever the case; or bytes, without
// a unit. Nullopt: something else, or less than 1.
std::optional<uint64_t> ParseShardSize(std::string_view text);

// Numbers of tensors, shard by shard: in the order given, each into the newest shard as long as that
// stays at `limit` bytes or below. One above the limit gets a shard of its own, and the newest shard
// goes on behind it. Tensors without bytes go where the first of them goes, as torch counts them as
// one storage. At least one shard, but for no tensors none.
std::vector<std::vector<size_t>> SplitIntoShards(const std::vector<OutTensor>& tensors,
                                                 uint64_t limit);

// "model.safetensors" as file `number` of `count`: "model-00001-of-00003.safetensors"; of one: itself.
std::string ShardName(std::string_view name, size_t number, size_t count);

// The text of NAME.index.json as accelerate writes it. `metadata` may add to "total_size".
std::string IndexJson(uint64_t total_bytes, const std::map<std::string, std::string>& metadata,
                      const std::map<std::string, std::string>& file_of);

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_SHARDS_H_
