// What a source holds: its files, and for each tensor the pieces that hold its
// bytes. Made by the format readers, consumed by the planner. Plain values.
#ifndef CKPTD_COMMON_SOURCE_INDEX_H_
#define CKPTD_COMMON_SOURCE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/byte_swap.h"
#include "common/source/dtype.h"

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

// An object of a source, as it was when its header was read. Only its storage knows what is in
// `object`, `version` and `host`: others keep, send and compare them. A difference means another
// source.
struct SourceFile {
  std::string path = {};  // absolute, as opened (links kept)
  uint64_t bytes = 0;
  std::string object = {};   // which object the path led to; empty: not known
  std::string version = {};  // its state; changes whenever it is written
  std::string host = {};     // what only this host's view adds: other hosts may see another one
  int64_t mtime_ns = 0;      // since 1970; copies may keep it
  uint64_t header_hash = 0;  // XXH3-64 of the bytes that were parsed
  bool operator==(const SourceFile&) const = default;
};

// One box of a tensor in one file. common/source/piece.h has its arithmetic.
struct Piece {
  uint32_t file = 0;    // index into CheckpointIndex::files
  uint64_t offset = 0;  // of the box's first element: absolute, in bytes
  uint64_t bytes = 0;   // of the box's elements, gaps between them left out
  Box box;
  // Elements from one index of a dimension to the next, as torch counts them. Empty: C order
  // without gaps, which nearly all pieces have, and which costs no memory. Elements may share
  // bytes (stride 0, as expand() makes them).
  Shape strides = {};
};

// What a tensor is to a training.
enum class EntryKind : uint8_t {
  kParameter = 0,
  kBuffer,
  kOptimizer,  // state that an optimizer keeps for a parameter
  kObject,     // bytes of something that is no tensor: U8, of one dimension
};
inline constexpr int kEntryKindCount = 4;

// "parameter", "buffer", "optimizer", "object".
std::string_view NameOf(EntryKind kind);

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  EntryKind kind = EntryKind::kParameter;
  // Which part of a training state it belongs to, as a number in CheckpointIndex::groups.
  uint32_t group = 0;
  Shape shape = {};                // of elements, also for sub-byte dtypes
  std::vector<Piece> pieces = {};  // disjoint, together the whole tensor; at least one
  // In the files the highest byte of each number comes first; complex numbers are two numbers.
  // Slabs are little-endian always.
  bool big_endian = false;
  // In the files they have the other sign: real numbers and the real parts of complex ones, or the
  // imaginary parts. Only of floating numbers, whose highest bit is their sign.
  bool negates_real = false;
  bool negates_imaginary = false;
};

// The signs that are turned over in the parts of a complex number; of a real one both or none.
Signs SignsOf(const TensorEntry& tensor);

inline constexpr size_t kMaxSourceValues = 1'000'000;

// Sorted by tensor name, byte order. Names are unique, aliases are not tensors.
struct CheckpointIndex {
  std::string source;  // absolute path as asked for, with "#part" where one was
  std::string part;    // of the source, as asked for; mostly empty
  std::string format;  // as its CheckpointFormat is called; empty: not known
  // The files that hold tensors, in the order of their names; then the index, if one named them.
  std::vector<SourceFile> files;
  std::vector<TensorEntry> tensors;
  // Names of the groups that tensors belong to ("model", "optimizer"); the first one is "", of
  // tensors that belong to none.
  std::vector<std::string> groups = {""};
  // Removed name -> name of the tensor that has its bytes (tied weights).
  std::map<std::string, std::string> aliases;
  // Metadata of the files, merged; the first file to state a key wins.
  std::map<std::string, std::string> metadata;
  // Things that are no tensors, by the path that leads to them ("optimizer.param_groups.0.lr"):
  // plain values as JSON ("0.001"), and objects of classes, which nobody builds, as "module.Name".
  // There are at most kMaxSourceValues of both.
  std::map<std::string, std::string> values;
  std::map<std::string, std::string> opaque;

  // The tensor of that name or alias; nullptr when there is none. O(log n).
  const TensorEntry* Find(const std::string& name) const;
  // The path of the source, without its part.
  std::string path() const;
};

// Digest over who the files were, in their order: equal for files that nobody replaced
// or wrote in between, also as two hosts see them.
uint64_t IdentityOf(const std::vector<SourceFile>& files);

// Whether both are the same object of this host, written to or not.
bool IsSameObject(const SourceFile& a, const SourceFile& b);

// Whether both may be one object as two hosts see it, or copies that kept their times.
bool IsSameOrCopy(const SourceFile& a, const SourceFile& b);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_INDEX_H_
