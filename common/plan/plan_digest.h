// What the digest of a rank's plan is made of: what all ranks of a cohort share, and
// what each receives of every kind of tensor. Equal on every machine.
#ifndef CKPTD_COMMON_PLAN_PLAN_DIGEST_H_
#define CKPTD_COMMON_PLAN_PLAN_DIGEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/tensor_kind.h"

namespace ckptd {

// Appends numbers as eight little-endian bytes and strings with their length, so
// that no two plans spell the same bytes.
class CanonicalHasher {
 public:
  void Number(uint64_t value);
  void Text(std::string_view text);
  void Reserve(size_t bytes) { text_.reserve(bytes); }
  // XXH3-64 of all that was appended.
  uint64_t Digest() const;

 private:
  std::string text_;
};

// Appends where a rank has its flat parameters; nothing where it has none.
void Spell(const std::vector<PlannedFlat>& flats, CanonicalHasher& out);

// Appends all of `part`, and between which dtypes it is copied.
void Spell(const TensorKind& kind, const Part& part, CanonicalHasher& out);

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_PLAN_DIGEST_H_
