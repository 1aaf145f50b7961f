// The head of an item, which is a file of torch.save, read without the rest of it. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DCP_HEAD_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DCP_HEAD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ckptd::dcp {

// Heads of nearly all items are shorter.
inline constexpr size_t kHeadBytes = 4096;

struct Head {
  std::span<const std::byte> pickle;
  bool big_endian = false;
  // Where the bytes of its one storage, "0", begin; nullopt: it holds no tensor.
  std::optional<uint64_t> data = {};
};

// `bytes` are what an item begins with. nullopt: this is not as torch.save writes a tensor or an
// object, or longer than `bytes`, and must be read as any zip is.
std::optional<Head> ReadHead(std::span<const std::byte> bytes);

}  // namespace ckptd::dcp

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DCP_HEAD_H_
