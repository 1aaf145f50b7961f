// nccl.h with its functions visible: everything else of the fake is hidden.
#ifndef CKPTD_TESTS_FAKES_NCCL_NCCL_API_H_
#define CKPTD_TESTS_FAKES_NCCL_NCCL_API_H_

#pragma GCC visibility push(default)
#include <nccl.h>
#pragma GCC visibility pop

#endif  // CKPTD_TESTS_FAKES_NCCL_NCCL_API_H_
