#include "common/plan/plan.h"

namespace ckptd {

uint64_t CopyOp::runs() const {
  uint64_t product = 1;
  for (uint32_t i = 0; i < dims; ++i) product *= count[i];
  return product;
}

uint64_t CopyOp::target_bytes() const {
  if (from == to) return source_bytes();
  // Casts are between whole-byte types only.
  return source_bytes() / (BitsOf(from) / 8) * (BitsOf(to) / 8);
}

uint64_t CopyOp::file_end() const {
  uint64_t end = file_offset + run_bytes;
  for (uint32_t i = 0; i < dims; ++i) end += (count[i] - 1) * file_stride[i];
  return end;
}

}  // namespace ckptd
