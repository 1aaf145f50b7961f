// Puts the tensors of all ranks' files together. No I/O.
#ifndef CKPTD_COMMON_SOURCE_RANKS_MERGE_H_
#define CKPTD_COMMON_SOURCE_RANKS_MERGE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/ranks/shards.h"

namespace ckptd::ranks {

// Takes the ranks one after the other. Not thread-safe.
class Merger {
 public:
  // `source` is for messages. With `own_names` what each rank has is its own, and called so.
  Merger(std::string source, bool own_names)
      : source_(std::move(source)), own_names_(own_names) {}

  // Adds one rank, each once and in their order; `file` is its number in the index. Errors, with
  // facts "file" and "tensor": DataLoss SOURCE_INVALID where ranks say different things of one
  // tensor; InvalidArgument SOURCE_INVALID for more than kMaxSourcePieces.
  absl::Status Add(RankState state, uint32_t file);

  // The index, but for its files. Tensors that each rank has whole (buffers) are taken from the
  // first one, with a remark where their values may differ. What FSDP1's LOCAL_STATE_DICT has of
  // flat parameters is of one dimension, as a remark says. Errors as of Add, for parts that leave
  // holes or overlap; Unimplemented SOURCE_UNSUPPORTED where nothing says how the ranks' tensors
  // belong together.
  absl::StatusOr<OpenedCheckpoint> Finish();

 private:
  struct Sharded {
    TensorEntry entry;
    // Boxes of its pieces -> torch::Tensor::content, which is equal for replicas.
    std::map<std::pair<Shape, Shape>, uint64_t> boxes;
    MeshRanks mesh;  // of the first rank that has a piece
  };
  struct Plain {
    TensorEntry entry;
    bool differs = false;   // ranks have it in different shapes or types
    bool all_empty = true;  // it is of one dimension and has no elements on any rank
    uint64_t content = 0;   // torch::Tensor::content
  };
  // The shards that a rank has of flat parameters, by the storage that each lies in.
  using FlatShards = std::map<std::string, const LocalBox*>;

  absl::Status Invalid(const std::string& tensor, const std::string& why) const;
  absl::Status CountPieces(size_t more);
  absl::Status CheckReplica(const Sharded& held, const LocalTensor& tensor, const LocalBox& box,
                            uint64_t content);
  void RemarkOnFirst();
  absl::Status AddSharded(const LocalTensor& tensor, uint32_t file, bool big_endian);
  absl::Status AddBox(Sharded& sharded, const LocalTensor& tensor, const LocalBox& local,
                      uint32_t file);
  absl::Status AddPlain(const torch::NamedTensor& tensor, uint32_t file, bool big_endian,
                        const FlatShards& flats);
  // Whether the tensor is a run of a flat parameter, which is added.
  bool AddFragment(const TensorEntry& entry, const torch::Tensor& tensor, const FlatShards& flats);
  absl::Status FinishSharded();
  absl::Status FinishFragments();
  absl::Status FinishPlain();
  absl::Status CheckTogether() const;
  void DropStrayAliases();

  const std::string source_;
  const bool own_names_;
  std::string last_file_;  // for messages
  size_t ranks_ = 0;
  size_t pieces_ = 0;
  std::map<std::string, Sharded> sharded_;
  std::map<std::string, Plain> plain_;
  // By name, the runs by where they begin in their flat parameter.
  std::map<std::string, std::map<uint64_t, TensorEntry>> fragments_;
  std::vector<std::string> flat_names_;
  // Tensors that ranks have whole, with values that are not known to be equal.
  std::set<std::string> taken_from_first_;
  OpenedCheckpoint out_;
};

}  // namespace ckptd::ranks

#endif  // CKPTD_COMMON_SOURCE_RANKS_MERGE_H_
