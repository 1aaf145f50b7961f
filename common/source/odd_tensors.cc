#include "common/source/odd_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "common/base/escape.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

bool IsFloat8(Dtype dtype) {
  return dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2 || dtype == Dtype::kF8E4M3Fnuz ||
         dtype == Dtype::kF8E5M2Fnuz;
}

// As DeepSeek, compressed-tensors, ComfyUI and others call them.
bool HasScale(const CheckpointIndex& index, const std::string& name) {
  constexpr std::string_view kWeight = "weight";
  for (const char* end : {"_scale_inv", "_scale", ".scale", "_scale_2"}) {
    if (index.Find(name + end) != nullptr) return true;
  }
  if (!name.ends_with(kWeight)) return false;
  const std::string stem = name.substr(0, name.size() - kWeight.size());
  return index.Find(stem + "scale") != nullptr || index.Find(stem + "scale_weight") != nullptr;
}

bool IsScaleOfNothing(const CheckpointIndex& index, const std::string& name) {
  constexpr std::string_view kScale = "_scale_inv";
  return name.ends_with(kScale) &&
         index.Find(name.substr(0, name.size() - kScale.size())) == nullptr;
}

bool IsEmpty(const TensorEntry& tensor) {
  return std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
}

}  // namespace

std::vector<std::string> RemarksOnOddTensors(const CheckpointIndex& index) {
  std::vector<std::string> unscaled;
  std::vector<std::string> scales;
  std::vector<std::string> adapters;
  for (const TensorEntry& tensor : index.tensors) {
    const std::string& name = tensor.name;
    if (tensor.kind != EntryKind::kParameter) continue;
    if (IsFloat8(tensor.dtype) && tensor.shape.size() > 1 && !HasScale(index, name)) {
      unscaled.push_back(Escape(name));
    }
    if (IsScaleOfNothing(index, name)) scales.push_back(Escape(name));
    if (IsEmpty(tensor) && name.find("lora_") != std::string::npos) {
      adapters.push_back(Escape(name));
    }
  }
  std::vector<std::string> out;
  if (!unscaled.empty()) {
    out.push_back(fmt::format("{} tensors are 8-bit floats without a scale beside them, and stay so: "
                              "{}",
                              unscaled.size(), Listed(unscaled)));
  }
  if (!scales.empty()) {
    out.push_back(fmt::format("{} scales are there without their tensor: {}", scales.size(),
                              Listed(scales)));
  }
  if (!adapters.empty()) {
    out.push_back(fmt::format("{} weights of an adapter have no elements, as a rank saves them that "
                              "has no part of them; gather them and save again: {}",
                              adapters.size(), Listed(adapters)));
  }
  return out;
}

}  // namespace ckptd
