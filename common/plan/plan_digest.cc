#include "common/plan/plan_digest.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <vector>

#include "common/base/digest.h"

namespace ckptd {
namespace {

void Spell(const CopyOp& copy, CanonicalHasher& out) {
  out.Number(copy.file);
  out.Number(copy.file_offset);
  out.Number(copy.slab_offset);
  out.Number(copy.run_bytes);
  out.Number(copy.dims);
  for (uint32_t i = 0; i < copy.dims; ++i) {
    out.Number(copy.count[i]);
    out.Number(copy.file_stride[i]);
    out.Number(copy.slab_stride[i]);
  }
}

}  // namespace

void CanonicalHasher::Number(uint64_t value) {
  char bytes[sizeof(value)];
  if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
  std::memcpy(bytes, &value, sizeof(value));
  text_.append(bytes, sizeof(bytes));
}

void CanonicalHasher::Text(std::string_view text) {
  Number(text.size());
  text_.append(text);
}

uint64_t CanonicalHasher::Digest() const { return Xxh3(text_); }

void Spell(const std::vector<PlannedFlat>& flats, CanonicalHasher& out) {
  for (const PlannedFlat& flat : flats) {
    out.Text(flat.name);
    out.Number(static_cast<uint64_t>(flat.dtype));
    out.Number(flat.offset);
    out.Number(flat.elements);
  }
}

void Spell(const TensorKind& kind, const Part& part, CanonicalHasher& out) {
  // One number, so that plans without it have the digests that they always had.
  out.Number(static_cast<uint64_t>(kind.from) | uint64_t{kind.swap - 1} << 32 |
             static_cast<uint64_t>(kind.negate) << 40);
  out.Number(static_cast<uint64_t>(kind.to));
  out.Number(part.shape.size());
  for (const uint64_t size : part.shape) out.Number(size);
  out.Number(part.bytes);
  out.Number(part.padded_bytes);
  if (kind.flat.has_value()) out.Number(part.flat_offset);
  out.Number(part.copies.size());
  for (const CopyOp& copy : part.copies) Spell(copy, out);
}

uint64_t CombineDigests(const std::vector<uint64_t>& rank_digests) {
  CanonicalHasher out;
  out.Number(rank_digests.size());
  for (const uint64_t digest : rank_digests) out.Number(digest);
  return out.Digest();
}

std::string HexDigest(uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace ckptd
