// The states in the files of a DeepSpeed checkpoint, read from pickles to plain values.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_STATES_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_STATES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/formats/deepspeed/partitions.h"
#include "common/source/storage.h"
#include "common/source/torch/file.h"
#include "common/source/torch/flatten.h"

namespace ckptd::deepspeed {

// *_model_states.pt.
struct ModelStates {
  torch::File file;
  // The module's state dict, in 16 bits mostly. Of stage 3 parameters have no elements here.
  torch::Flattened module;
  // The parameters that the optimizer has in 32 bits: those of each of its groups, in their order.
  std::vector<std::vector<Parameter>> groups;
  // Parameters that are not trained, and of stage 3 what this rank has of each.
  std::vector<Parameter> frozen;
  std::map<std::string, torch::Tensor> frozen_parts;
  std::set<std::string> buffers;
  std::map<std::string, std::string> shared;  // name -> name of the parameter that it is, too
  std::optional<uint64_t> stage;              // of ZeRO, by the configuration; 0: none
  uint64_t ranks = 0;                         // data-parallel; 0: not stated
  // The values of everything else: the counters of the engine and the client's state.
  torch::Flattened others;
  // Without ZeRO, the optimizer's whole state.
  torch::Flattened optimizer;
};

// Errors, with fact "file": those of torch::ReadFile and torch::Flatten; DataLoss SOURCE_INVALID
// for a file that holds something else.
absl::StatusOr<ModelStates> ReadModelStates(const Storage& storage, const std::string& path);

// A rank's part of one group of the optimizer.
struct GroupOfRank {
  torch::Tensor part;   // 32-bit elements, of one dimension without gaps
  std::map<std::string, torch::Tensor> state;  // "exp_avg" ..., where it was asked for
};

// *_optim_states.pt of one rank.
struct OptimizerStates {
  SourceFile file;
  bool big_endian = false;
  uint64_t stage = 0;
  uint64_t ranks = 0;         // among which the groups are partitioned
  bool has_experts = false;   // groups are partitioned among different numbers of ranks
  std::vector<GroupOfRank> groups;
  // Elements behind each parameter of each group; empty: none has any (before DeepSpeed 0.19).
  std::vector<std::vector<uint64_t>> paddings;
  torch::Flattened optimizer;  // its values alone, where they were asked for
};

enum class Wanted { kWeights, kState, kStateAndValues };

// Errors as of ReadModelStates; Unimplemented SOURCE_UNSUPPORTED for parts that no tensor can lie in.
absl::StatusOr<OptimizerStates> ReadOptimizerStates(const Storage& storage,
                                                    const std::string& path, Wanted wanted);

}  // namespace ckptd::deepspeed

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_STATES_H_
