#include "common/source/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/source/index.h"

namespace ckptd {
namespace {

TEST(Dtype, EveryNameParsesToItsDtype) {
  for (int i = 1; i < kDtypeCount; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(ParseDtype(NameOf(dtype)), dtype) << NameOf(dtype);
  }
}

TEST(Dtype, UnspecifiedIsNoNameOfAFile) {
  EXPECT_EQ(ParseDtype(NameOf(Dtype::kUnspecified)), std::nullopt);
}

TEST(Dtype, NamesAreCaseSensitive) { EXPECT_EQ(ParseDtype("f32"), std::nullopt); }

TEST(Dtype, WidthsAreThoseOfTheFormat) {
  EXPECT_EQ(BitsOf(Dtype::kUnspecified), 0U);
  EXPECT_EQ(BitsOf(Dtype::kBool), 8U);
  EXPECT_EQ(BitsOf(Dtype::kF4), 4U);
  EXPECT_EQ(BitsOf(Dtype::kF6E2M3), 6U);
  EXPECT_EQ(BitsOf(Dtype::kF8E5M2Fnuz), 8U);
  EXPECT_EQ(BitsOf(Dtype::kI16), 16U);
  EXPECT_EQ(BitsOf(Dtype::kBF16), 16U);
  EXPECT_EQ(BitsOf(Dtype::kF32), 32U);
  EXPECT_EQ(BitsOf(Dtype::kC64), 64U);
  EXPECT_EQ(BitsOf(Dtype::kU64), 64U);
  EXPECT_EQ(BitsOf(Dtype::kC32), 32U);
  EXPECT_EQ(BitsOf(Dtype::kC128), 128U);
  EXPECT_EQ(BitsOf(Dtype::kBits8), 8U);
  EXPECT_EQ(BitsOf(Dtype::kBits16), 16U);
}

TEST(Dtype, ComplexElementsAreTwoNumbers) {
  EXPECT_EQ(NumberBytesOf(Dtype::kC32), 2U);
  EXPECT_EQ(NumberBytesOf(Dtype::kC64), 4U);
  EXPECT_EQ(NumberBytesOf(Dtype::kC128), 8U);
  EXPECT_EQ(NumberBytesOf(Dtype::kI64), 8U);
  EXPECT_EQ(NumberBytesOf(Dtype::kBits16), 2U);
  for (const Dtype one : {Dtype::kBool, Dtype::kF8E4M3, Dtype::kF4, Dtype::kUnspecified}) {
    EXPECT_EQ(NumberBytesOf(one), 1U);
  }
}

TEST(Dtype, TheLastOnesAreNoneOfSafetensors) {
  EXPECT_TRUE(IsOfSafetensors(Dtype::kBool));
  EXPECT_TRUE(IsOfSafetensors(Dtype::kU64));
  for (const Dtype other : {Dtype::kUnspecified, Dtype::kC32, Dtype::kC128, Dtype::kBits8,
                            Dtype::kBits16}) {
    EXPECT_FALSE(IsOfSafetensors(other)) << NameOf(other);
  }
}

TEST(Dtype, AValueOutsideTheEnumIsUnspecified) {
  EXPECT_EQ(NameOf(static_cast<Dtype>(200)), "UNSPECIFIED");
}

TEST(Dtype, OnlyTheFourWideFloatsAreCastable) {
  int castable = 0;
  for (int i = 0; i < kDtypeCount; ++i) castable += IsCastable(static_cast<Dtype>(i)) ? 1 : 0;
  EXPECT_EQ(castable, 4);
  EXPECT_TRUE(IsCastable(Dtype::kBF16));
}

TEST(ElementCount, OfAScalarIsOne) { EXPECT_EQ(ElementCount({}), 1U); }

TEST(ElementCount, IsTheProductOfTheExtents) { EXPECT_EQ(ElementCount({2, 3, 4}), 24U); }

CheckpointIndex TwoTensors() {
  CheckpointIndex index;
  index.tensors.resize(2);
  index.tensors[0].name.assign(1, 'a');
  index.tensors[1].name.assign(1, 'c');
  index.aliases.emplace("b", "c");
  return index;
}

TEST(CheckpointIndex, FindsATensorByName) {
  const CheckpointIndex index = TwoTensors();
  EXPECT_EQ(index.Find("a"), &index.tensors[0]);
}

TEST(CheckpointIndex, FindsTheKeptTensorByTheRemovedName) {
  const CheckpointIndex index = TwoTensors();
  EXPECT_EQ(index.Find("b"), &index.tensors[1]);
}

TEST(CheckpointIndex, FindsNothingBetweenBeforeAndAfter) {
  const CheckpointIndex index = TwoTensors();
  EXPECT_EQ(index.Find(""), nullptr);
  EXPECT_EQ(index.Find("bb"), nullptr);
  EXPECT_EQ(index.Find("d"), nullptr);
}

}  // namespace
}  // namespace ckptd
