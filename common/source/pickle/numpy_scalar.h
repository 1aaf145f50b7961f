// Numbers of numpy, which trainers store beside tensors.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_NUMPY_SCALAR_H_
#define CKPTD_COMMON_SOURCE_PICKLE_NUMPY_SCALAR_H_

#include "common/source/pickle/builder.h"
#include "common/source/pickle/value.h"

namespace ckptd::pickle {

// The number that numpy's scalar(dtype, bytes) is; nullptr: it is none of Python's numbers.
const Value* NumpyScalar(Items arguments, Builder& builder);

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_NUMPY_SCALAR_H_
