// Tensors that lie on several ranks, as one rank's file has them: DTensors and ShardedTensors,
// which are read as pickles describe them, never built.
#ifndef CKPTD_COMMON_SOURCE_RANKS_SHARDS_H_
#define CKPTD_COMMON_SOURCE_RANKS_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/index.h"
#include "common/source/placements.h"
#include "common/source/torch/file.h"
#include "common/source/torch/flatten.h"

namespace ckptd::ranks {

// The ranks of a mesh, ascending; nullptr: not known.
using MeshRanks = std::shared_ptr<const std::vector<uint32_t>>;

// A box of a tensor, and where its elements lie: a view of the box's shape.
struct LocalBox {
  Box box;
  torch::Tensor view;
};

struct LocalTensor {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;  // kUnspecified: this rank has nothing of it
  Shape shape;  // of the whole tensor
  std::vector<LocalBox> boxes;  // disjoint; none is empty
  MeshRanks mesh = nullptr;
};

// The ranks that tensors lie on. Lists of them are shared by many tensors, and looked at once.
struct Ranks {
  std::set<uint32_t> numbers;
  std::unordered_set<const pickle::Value*> seen;                  // lists of shards
  std::unordered_map<const pickle::Value*, MeshRanks> of_meshes;
  std::unordered_map<const pickle::Value*, std::vector<uint32_t>> lists;  // as they are in the file
  uint32_t all_below = 0;  // these are in `numbers`
  size_t kept = 0;         // by of_meshes
};

// The local tensor that a DTensor's placements and mesh, or a ShardedTensor's shards, describe;
// `name` is for messages. Nullopt: the record is neither. Adds the ranks that the tensor lies on to
// `ranks`. Errors, with facts "file" and "tensor": DataLoss SOURCE_INVALID for what cannot be,
// Unimplemented SOURCE_UNSUPPORTED for placements that are pending (Partial) and meshes that cannot
// be read.
absl::StatusOr<std::optional<LocalTensor>> LocalTensorOf(const torch::File& file,
                                                         const std::string& name,
                                                         const pickle::Value& record,
                                                         Ranks& ranks);

// torch counts pairs of F4, everybody else elements: makes elements of sizes. False: too many.
bool CountElements(Dtype dtype, Shape& shape);

// Adds the boxes of the whole tensor that `local` has, as `cut` says, to `out`, which has a name and
// a shape. Both count as torch does; afterwards the shape counts elements. Errors, with facts "file"
// (`path`) and "tensor": DataLoss SOURCE_INVALID for a local tensor of another shape, Unimplemented
// SOURCE_UNSUPPORTED for parts that begin within a byte.
absl::Status AddBoxes(const std::string& path, const torch::Tensor& local, CutTensor cut,
                      LocalTensor& out);

// How many boxes the tensors of all ranks may have: short files name a tensor of thousands of boxes
// again and again.
class BoxBudget {
 public:
  // For each file, before its tensors.
  void AddFile(const SourceFile& file) { bytes_ += file.bytes; }
  // Before a tensor of the file that came last is kept. Errors, with facts "file" and "tensor":
  // InvalidArgument SOURCE_INVALID for more boxes than files of such a size have, and for more than
  // kMaxSourcePieces.
  absl::Status Pay(const std::string& path, const LocalTensor& tensor);

 private:
  uint64_t bytes_ = 0;
  size_t boxes_ = 0;
};

// All of a rank's file.
struct RankState {
  SourceFile file;
  bool big_endian = false;
  std::vector<LocalTensor> sharded;
  torch::Flattened plain;  // tensors that each rank has whole, and values
  std::set<uint32_t> ranks;  // that the tensors lie on
};

// Names begin with `prefix` ("" or "rank_1"). Errors: those of torch::Flatten, LocalTensorOf and
// BoxBudget::Pay.
absl::StatusOr<RankState> RankStateOf(const torch::File& file, const std::string& prefix,
                                      BoxBudget& budget);

}  // namespace ckptd::ranks

#endif  // CKPTD_COMMON_SOURCE_RANKS_SHARDS_H_
