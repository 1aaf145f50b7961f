// The index of a checkpoint that nobody wrote, hardware to load it on, and how near the model
// of such a load has to be.
#ifndef CKPTD_TESTS_TESTING_LLAMA_INDEX_H_
#define CKPTD_TESTS_TESTING_LLAMA_INDEX_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "client/cli/load_model.h"
#include "common/source/index.h"

namespace ckptd {

// As a Llama of `layers`, in bf16: per layer four square matrices, three long ones, a norm.
inline CheckpointIndex LlamaIndex(uint32_t layers, uint64_t width) {
  CheckpointIndex index;
  index.files.resize(1);
  const auto add = [&index](const std::string& name, const Shape& shape) {
    TensorEntry& tensor = index.tensors.emplace_back();
    tensor.name = name;
    tensor.dtype = Dtype::kBF16;
    tensor.shape = shape;
    Piece& piece = tensor.pieces.emplace_back();
    piece.offset = index.files[0].bytes;
    piece.box = {Shape(shape.size(), 0), shape};
    piece.bytes = 2 * ElementCount(shape);
    index.files[0].bytes += piece.bytes;
  };
  for (uint32_t i = 10; i < 10 + layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    for (const char* const name : {"a_q", "b_k", "c_v", "d_o"}) add(layer + name, {width, width});
    for (const char* const name : {"e_gate", "f_up"}) add(layer + name, {4 * width, width});
    add(layer + "g_down", {width, 4 * width});
    add(layer + "h_norm", {width});
  }
  return index;
}

// Hosts of so many GPUs each, with the rates of a large one.
inline Hardware LargeHosts(uint32_t gpus) {
  constexpr double kGB = 1e9;
  Hardware hosts;
  hosts.name = "a test";
  hosts.gpus_per_host = gpus;
  hosts.storage = 12 * kGB;
  hosts.memory = 80 * kGB;
  hosts.link = 55 * kGB;
  hosts.links = 240 * kGB;
  hosts.fabric = 350 * kGB;
  hosts.network = 360 * kGB;
  hosts.streams = 5 * kGB;
  hosts.fixed_seconds = 0;
  return hosts;
}

// The model is a bound from below that a load comes close to.
inline void ExpectCloseAbove(double seconds, const LoadPrediction& prediction) {
  const ModelStage& bound = prediction.stages.front();
  EXPECT_GE(seconds, prediction.seconds * 0.999) << bound.stage << ", " << bound.where;
  EXPECT_LE(seconds, prediction.seconds * 1.25) << bound.stage << ", " << bound.where;
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_LLAMA_INDEX_H_
