// ncclGroupStart ... ncclGroupEnd: of a thread, as in the real one.
#ifndef CKPTD_TESTS_FAKES_NCCL_GROUP_H_
#define CKPTD_TESTS_FAKES_NCCL_GROUP_H_

#include "tests/fakes/nccl/comm.h"

namespace ckptd::fake_nccl {

bool InGroup();
ncclResult_t GroupStart();
ncclResult_t GroupEnd();
// An operation in the group of this thread, or in one of its own.
ncclResult_t AddOp(const CommPtr& comm, const Op& op);
// Remembers the error for GroupEnd if the thread is in a group (ncclGroupErrCheck); answers it.
ncclResult_t GroupError(ncclResult_t error);

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_FAKES_NCCL_GROUP_H_
