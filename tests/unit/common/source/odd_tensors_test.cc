#include "common/source/odd_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ckptd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CheckpointIndex IndexOf(std::vector<TensorEntry> tensors) {
  CheckpointIndex index;
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  index.tensors = std::move(tensors);
  return index;
}

TensorEntry Float8(const std::string& name) {
  return {.name = name, .dtype = Dtype::kF8E4M3, .shape = {2, 2}};
}
TensorEntry Scale(const std::string& name) {
  return {.name = name, .dtype = Dtype::kF32, .shape = {1, 1}};
}

TEST(OddTensors, NamesFloatsOf8BitsWithoutAScale) {
  EXPECT_THAT(RemarksOnOddTensors(IndexOf({Float8("a.weight"), Float8("b.weight"),
                                           Scale("b.weight_scale_inv")})),
              ElementsAre(HasSubstr("1 tensors are 8-bit floats without a scale beside them, and "
                                    "stay so: \"a.weight\"")));
}

TEST(OddTensors, KnowsScalesByTheirUsualNames) {
  for (const char* scale : {"a.weight_scale_inv", "a.weight_scale", "a.scale", "a.scale_weight"}) {
    EXPECT_THAT(RemarksOnOddTensors(IndexOf({Float8("a.weight"), Scale(scale)})), IsEmpty())
        << scale;
  }
}

TEST(OddTensors, NamesScalesWithoutTheirTensor) {
  EXPECT_THAT(RemarksOnOddTensors(IndexOf({Scale("a.weight_scale_inv")})),
              ElementsAre(HasSubstr("scales are there without their tensor")));
}

TEST(OddTensors, NamesWeightsOfAdaptersWithoutElements) {
  EXPECT_THAT(RemarksOnOddTensors(IndexOf({{.name = "q.lora_A.weight", .shape = {0}},
                                           {.name = "q.lora_B.weight", .shape = {4, 2}},
                                           {.name = "other", .shape = {0}}})),
              ElementsAre(HasSubstr("have no elements")));
}

}  // namespace
}  // namespace ckptd
