// The files of a DeepSpeed checkpoint by their names. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FILES_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ckptd::deepspeed {

// By the rank that wrote them.
using RankFiles = std::map<uint32_t, std::string>;

// Files of the folder of a tag.
struct StateFiles {
  // mp_rank_00_model_states.pt, as rank 0's; of stage 3 each rank's own.
  RankFiles models;
  bool models_by_rank = false;
  // [bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt ...
  RankFiles optimizers;
  bool is_universal = false;  // made by ds_to_universal: a folder for each parameter
  // Why they are not read ("it holds ..."); empty: they are.
  std::string unsupported;

  bool empty() const { return models.empty() && !is_universal && unsupported.empty(); }
};

// `names` are sorted.
StateFiles StateFilesOf(const std::vector<std::string>& names);

// The names of the files that ranks below `count` lack.
std::vector<std::string> MissingOptimizers(const StateFiles& files, uint32_t count);
std::vector<std::string> MissingModels(const StateFiles& files, uint32_t count);

}  // namespace ckptd::deepspeed

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FILES_H_
