// Element types as pickles of torch name them. Pure.
#ifndef CKPTD_COMMON_SOURCE_TORCH_DTYPES_H_
#define CKPTD_COMMON_SOURCE_TORCH_DTYPES_H_

#include <optional>
#include <string_view>

#include "common/source/dtype.h"

namespace ckptd::torch {

// Of "torch.FloatStorage" and the like; U8 for untyped storages; nullopt: none that is read.
std::optional<Dtype> DtypeOfStorage(std::string_view symbol);

// Of "torch.float32" and the like. "torch.float4_e2m1fn_x2" is kF4, though torch counts pairs.
std::optional<Dtype> DtypeOf(std::string_view symbol);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_TORCH_DTYPES_H_
