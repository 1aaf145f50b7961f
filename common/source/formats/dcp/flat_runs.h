// Optimizer states of Megatron-Core up to 0.15 (flattened_range): each rank stores a flat run of
// its shard. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DCP_FLAT_RUNS_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DCP_FLAT_RUNS_H_

#include <string>
#include <vector>

#include "common/source/index.h"

namespace ckptd::dcp {

// Replaces the one box of a tensor as it is stored, of the shape (shards along each dimension...,
// elements of a shard), by boxes of the tensor itself, of `model_shape`, in the order of the run.
// Returns why it cannot be done, as the end of a sentence; empty: it is done. The box lies in
// `stored_shape`, and has elements.
std::string BoxesOfRun(const Shape& stored_shape, const Shape& model_shape,
                       std::vector<Box>& boxes);

}  // namespace ckptd::dcp

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DCP_FLAT_RUNS_H_
