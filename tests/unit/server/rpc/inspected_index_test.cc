#include "server/rpc/inspected_index.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace ckptd {
namespace {

std::shared_ptr<const CheckpointIndex> IndexOf(const std::string& source) {
  auto index = std::make_shared<CheckpointIndex>();
  index->source = source;
  return index;
}

// Whether it is destroyed within half a minute.
bool Goes(const std::weak_ptr<const CheckpointIndex>& index) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!index.expired() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return index.expired();
}

TEST(InspectedIndex, IsTheLastOneThatWasPut) {
  InspectedIndex inspected;
  EXPECT_EQ(inspected.Get("/a"), nullptr);
  const auto a = IndexOf("/a");
  inspected.Put(a);
  EXPECT_EQ(inspected.Get("/a"), a);
  EXPECT_EQ(inspected.Get("/b"), nullptr);
  EXPECT_EQ(inspected.Get("/a", "a view"), nullptr);
  inspected.Put(IndexOf("/b"));
  EXPECT_EQ(inspected.Get("/a"), nullptr);
  inspected.Drop("/a");
  EXPECT_NE(inspected.Get("/b"), nullptr);
  inspected.Drop("/b");
  EXPECT_EQ(inspected.Get("/b"), nullptr);
}

TEST(InspectedIndex, GoesOnceNobodyAsksForFurtherPages) {
  InspectedIndex inspected(std::chrono::milliseconds(1));
  for (const char* source : {"/a", "/b"}) {
    auto index = IndexOf(source);
    const std::weak_ptr<const CheckpointIndex> kept = index;
    inspected.Put(std::move(index));
    EXPECT_TRUE(Goes(kept));
    EXPECT_EQ(inspected.Get(source), nullptr);
  }
}

TEST(InspectedIndex, EndsWithItsService) {
  auto index = IndexOf("/a");
  const std::weak_ptr<const CheckpointIndex> kept = index;
  {
    InspectedIndex inspected(std::chrono::hours(1));
    inspected.Put(std::move(index));
    EXPECT_FALSE(kept.expired());
  }
  EXPECT_TRUE(kept.expired());
}

}  // namespace
}  // namespace ckptd
