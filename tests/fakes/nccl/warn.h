// What ncclGetLastError says.
#ifndef CKPTD_TESTS_FAKES_NCCL_WARN_H_
#define CKPTD_TESTS_FAKES_NCCL_WARN_H_

#include "tests/fakes/nccl/nccl_api.h"

namespace ckptd::fake_nccl {

// Keeps the text, a literal, and answers `result`. Thread-safe; of the process, as in the real one.
ncclResult_t Warn(ncclResult_t result, const char* text);
const char* LastWarning();

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_FAKES_NCCL_WARN_H_
