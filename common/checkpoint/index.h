// What a source holds: its files, and for each tensor the pieces that hold its
// bytes. Made by the format readers, consumed by the planner. Plain values.
#ifndef CKPTD_COMMON_CHECKPOINT_INDEX_H_
#define CKPTD_COMMON_CHECKPOINT_INDEX_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/dtype.h"

namespace ckptd {

// Sizes in elements, outermost first. Rank 0 means a scalar.
using Shape = std::vector<uint64_t>;

// Product of a validated shape.
uint64_t ElementCount(const Shape& shape);

// A box of global indices: [offsets, offsets + extents) in each dimension.
struct Box {
  Shape offsets;
  Shape extents;
  bool operator==(const Box&) const = default;
};

struct SourceFile {
  std::string path;  // absolute, as opened (links kept)
  uint64_t bytes = 0;
  // Who the file was when its header was read: a change means another source.
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t mtime_ns = 0;
  // Of the inode: also a writer that sets mtime back moves it; so do chmod, rename, link.
  int64_t ctime_ns = 0;
  uint64_t header_hash = 0;  // XXH3-64 of the bytes that were parsed
  bool operator==(const SourceFile&) const = default;
};

// Bytes of one box of a tensor: C order, little-endian, without gaps.
struct Piece {
  uint32_t file = 0;    // index into CheckpointIndex::files
  uint64_t offset = 0;  // absolute, in bytes
  uint64_t bytes = 0;
  Box box;
};

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;                // of elements, also for sub-byte dtypes
  std::vector<Piece> pieces;  // disjoint, together the whole tensor
};

// Sorted by tensor name, byte order. Names are unique, aliases are not tensors.
struct CheckpointIndex {
  std::string source;  // absolute path as asked for
  // Those that hold tensors, in the order of their names; then the index, if one named them.
  std::vector<SourceFile> files;
  std::vector<TensorEntry> tensors;
  // Removed name -> name of the tensor that has its bytes (tied weights).
  std::map<std::string, std::string> aliases;
  // Metadata of the files, merged; the first file to state a key wins.
  std::map<std::string, std::string> metadata;

  // The tensor of that name or alias; nullptr when there is none. O(log n).
  const TensorEntry* Find(const std::string& name) const;
};

// Digest over who the files were, in their order: equal for files that nobody replaced
// or wrote in between, also as two hosts see them.
uint64_t IdentityOf(const std::vector<SourceFile>& files);

}  // namespace ckptd

#endif  // CKPTD_COMMON_CHECKPOINT_INDEX_H_
