// Element types as pickles of torch name them. Pure.
#ifndef CKPTD_COMMON_SOURCE_TORCH_DTYPES_H_
#define CKPTD_COMMON_SOURCE_TORCH_DTYPES_H_

#include <optional>
#include <string_view>

#include "common/source/dtype.h"

namespace ckptd::torch {

// The dtype of "torch.FloatStorage" and the like; U8 for untyped ones; nullopt: none that is read.
std::optional<Dtype> DtypeOfStorage(std::string_view symbol);

// The dtype of "torch.float32" and others; torch counts pairs of "torch.float4_e2m1fn_x2", our kF4.
std::optional<Dtype> DtypeOf(std::string_view symbol);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_TORCH_DTYPES_H_
