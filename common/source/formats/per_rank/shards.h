// What one rank's file has of tensors that lie on several ranks: DTensors and ShardedTensors, which
// are read as pickles describe them, never built.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_PER_RANK_SHARDS_H_
#define CKPTD_COMMON_SOURCE_FORMATS_PER_RANK_SHARDS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/index.h"
#include "common/source/storage.h"
#include "common/source/torch/file.h"
#include "common/source/torch/flatten.h"

namespace ckptd::per_rank {

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
};

// The ranks that tensors lie on. Lists of them are shared by many tensors, and looked at once.
struct Ranks {
  std::set<uint32_t> numbers;
  std::unordered_set<const pickle::Value*> seen;
};

// What a DTensor's placements and mesh, or a ShardedTensor's shards, say of the local tensors; `name`
// is for messages. Nullopt: the record is neither. Adds the ranks that the tensor lies on to `ranks`.
// Errors, with facts "file" and "tensor": DataLoss SOURCE_INVALID for what cannot be, Unimplemented
// SOURCE_UNSUPPORTED for placements that are pending (Partial) and meshes that cannot be read.
absl::StatusOr<std::optional<LocalTensor>> LocalTensorOf(const torch::File& file,
                                                         const std::string& name,
                                                         const pickle::Value& record,
                                                         Ranks& ranks);

// All of a rank's file.
struct RankState {
  SourceFile file;
  bool big_endian = false;
  std::vector<LocalTensor> sharded;
  torch::Flattened plain;  // tensors that each rank has whole, and values
  std::set<uint32_t> ranks;  // that the tensors lie on
};

// Errors: those of torch::ReadFile, torch::Flatten and LocalTensorOf.
absl::StatusOr<RankState> ReadRankState(const Storage& storage, const std::string& path,
                                        const std::string& prefix);

}  // namespace ckptd::per_rank

#endif  // CKPTD_COMMON_SOURCE_FORMATS_PER_RANK_SHARDS_H_
