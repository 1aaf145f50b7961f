#include "common/layout/plan_digest.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/digest.h"

namespace ckptd {
namespace {

// Appends numbers as eight little-endian bytes and strings with their length, so
// that no two plans spell the same bytes.
class Spelling {
 public:
  void Number(uint64_t value) {
    char bytes[sizeof(value)];
    if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
    std::memcpy(bytes, &value, sizeof(value));
    text_.append(bytes, sizeof(bytes));
  }
  void Text(std::string_view text) {
    Number(text.size());
    text_.append(text);
  }
  void Reserve(size_t bytes) { text_.reserve(bytes); }
  uint64_t Digest() const { return Xxh3(text_); }

 private:
  std::string text_;
};

void Spell(const PlannedTensor& tensor, Spelling& out) {
  out.Text(tensor.name);
  out.Number(tensor.aliases.size());
  for (const std::string& alias : tensor.aliases) out.Text(alias);
  out.Number(static_cast<uint64_t>(tensor.dtype));
  out.Number(tensor.shape.size());
  for (const uint64_t size : tensor.shape) out.Number(size);
  out.Number(tensor.offset);
  out.Number(tensor.bytes);
  out.Number(tensor.padded_bytes);
}

void Spell(const CopyOp& op, Spelling& out) {
  out.Number(op.file);
  out.Number(op.tensor);
  out.Number(static_cast<uint64_t>(op.from));
  out.Number(static_cast<uint64_t>(op.to));
  out.Number(op.file_offset);
  out.Number(op.slab_offset);
  out.Number(op.run_bytes);
  out.Number(op.dims);
  for (uint32_t i = 0; i < op.dims; ++i) {
    out.Number(op.count[i]);
    out.Number(op.file_stride[i]);
    out.Number(op.slab_stride[i]);
  }
}

}  // namespace

uint64_t DigestOf(const RankPlan& plan) {
  constexpr size_t kTypicalTensorAndOp = 256;
  Spelling out;
  out.Reserve(plan.tensors.size() * kTypicalTensorAndOp);
  out.Number(plan.rank);
  out.Number(plan.slab_bytes);
  out.Number(plan.tensor_bytes);
  out.Number(plan.tensors.size());
  for (const PlannedTensor& tensor : plan.tensors) Spell(tensor, out);
  out.Number(plan.ops.size());
  for (const CopyOp& op : plan.ops) Spell(op, out);
  return out.Digest();
}

uint64_t CombineDigests(const std::vector<uint64_t>& rank_digests) {
  Spelling out;
  out.Number(rank_digests.size());
  for (const uint64_t digest : rank_digests) out.Number(digest);
  return out.Digest();
}

std::string HexDigest(uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace ckptd
