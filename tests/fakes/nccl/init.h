// Making a communicator: what is looked at before anybody is waited for.
#ifndef CKPTD_TESTS_FAKES_NCCL_INIT_H_
#define CKPTD_TESTS_FAKES_NCCL_INIT_H_

#include "tests/fakes/nccl/comm.h"

namespace ckptd::fake_nccl {

// What the real one would do to a thread's group is not imitated.
bool RefusedInGroup();

// `info` has the rank and the number of ranks; a null `config` is the default one.
ncclResult_t Init(ncclComm_t* out, const ncclUniqueId& id, RankInfo info,
                  const ncclConfig_t* config, const Fault* fault);

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_FAKES_NCCL_INIT_H_
