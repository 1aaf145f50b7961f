#include "common/source/formats/dcp/flat_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd::dcp {
namespace {

using testing::ElementsAre;

std::vector<Box> RunOf(const Shape& stored, const Shape& model, const Box& box, std::string* why) {
  std::vector<Box> boxes = {box};
  *why = BoxesOfRun(stored, model, boxes);
  return boxes;
}

TEST(BoxesOfRun, AreBoxesOfTheShardInTheTensor) {
  std::string why;
  // Four shards of (2, 3) in a tensor of (4, 6); elements 1 to 4 of the one below on the right.
  const auto boxes = RunOf({2, 2, 6}, {4, 6}, {{1, 1, 1}, {1, 1, 4}}, &why);
  EXPECT_EQ(why, "");
  EXPECT_THAT(boxes, ElementsAre(Box{{2, 4}, {1, 2}}, Box{{3, 3}, {1, 2}}));
}

TEST(BoxesOfRun, OfAWholeShardIsOneBox) {
  std::string why;
  EXPECT_THAT(RunOf({1, 4, 1, 64}, {1, 32, 8}, {{0, 2, 0, 0}, {1, 1, 1, 64}}, &why),
              ElementsAre(Box{{0, 16, 0}, {1, 8, 8}}));
  EXPECT_EQ(why, "");
}

TEST(BoxesOfRun, RefusesShapesThatDoNotFitEachOther) {
  std::string why;
  const Box box = {{0, 0, 0}, {1, 1, 6}};
  RunOf({2, 2, 6}, {4, 6, 1}, box, &why);
  EXPECT_EQ(why, "has another number of dimensions in its model");
  RunOf({2, 2, 6}, {4, 5}, box, &why);
  EXPECT_EQ(why, "does not fall into its shards");
  RunOf({0, 2, 6}, {4, 6}, box, &why);
  EXPECT_EQ(why, "does not fall into its shards");
  RunOf({2, 2, 7}, {4, 6}, box, &why);
  EXPECT_EQ(why, "has shards of another size");
  RunOf({2, 2, 6}, {4, 6}, {{0, 0, 0}, {1, 2, 6}}, &why);
  EXPECT_EQ(why, "has a flat run of several shards");
}

}  // namespace
}  // namespace ckptd::dcp
