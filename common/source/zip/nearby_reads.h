// Reads small parts of an object that are known beforehand: neighbours come with one read, and the
// kernel hears of the next ones early.
#ifndef CKPTD_COMMON_SOURCE_ZIP_NEARBY_READS_H_
#define CKPTD_COMMON_SOURCE_ZIP_NEARBY_READS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/zip/object_part.h"

namespace ckptd::zip {

// Not thread-safe. The part outlives it.
class NearbyReads {
 public:
  // `offsets` are where the parts begin, in ascending order; each is mostly of `usual_bytes`.
  NearbyReads(const ObjectPart& part, std::span<const uint64_t> offsets, size_t usual_bytes);

  // Bytes of the object from `offset`, which is one of `offsets` and not before the last one that
  // was asked for, or from there on. Valid until the next call. Errors: those of
  // ObjectPart::ReadAt.
  absl::StatusOr<std::span<const std::byte>> Get(uint64_t offset, size_t bytes);

 private:
  struct Window {
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  void AnnounceNext();

  const ObjectPart& part_;
  std::vector<Window> windows_;  // in ascending order, disjoint
  size_t next_ = 0;              // of windows_: the first that is not read
  size_t announced_ = 0;
  std::vector<std::byte> bytes_;
  uint64_t begin_ = 0;  // of bytes_ in the part
};

}  // namespace ckptd::zip

#endif  // CKPTD_COMMON_SOURCE_ZIP_NEARBY_READS_H_
