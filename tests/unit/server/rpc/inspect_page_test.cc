#include "server/rpc/inspect_page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

CheckpointIndex Source(int tensors, int values) {
  CheckpointIndex index;
  index.source = "/c#optimizer";
  index.format = "torch";
  index.files.emplace_back().path = "/c/a";
  for (int i = 0; i < tensors; ++i) {
    TensorEntry& tensor = index.tensors.emplace_back();
    tensor.name = fmt::format("t{}", i);
    tensor.dtype = Dtype::kU8;
    tensor.pieces = {{0, 8, 1, {}}};
  }
  for (int i = 0; i < values; ++i) index.values.emplace(fmt::format("v{}", i), std::to_string(i));
  index.opaque = {{"args", "argparse.Namespace"}};
  return index;
}

// The content of all pages together.
struct All {
  std::vector<std::string> names;
  std::map<std::string, std::string> values;
  std::map<std::string, std::string> opaque;
  int pages = 0;
};

All Read(const CheckpointIndex& index, uint32_t page_size, bool values) {
  All all;
  std::string token;
  do {
    const auto page = InspectPage(index, token, page_size, values);
    EXPECT_THAT(page, IsOk());
    if (!page.ok()) return all;
    const auto& names = page->index().tensors().names();
    all.names.insert(all.names.end(), names.begin(), names.end());
    all.values.insert(page->index().values().begin(), page->index().values().end());
    all.opaque.insert(page->index().opaque().begin(), page->index().opaque().end());
    token = page->next_page_token();
    ++all.pages;
  } while (!token.empty());
  return all;
}

TEST(InspectPage, CountsValuesAndListsThemOnlyIfAsked) {
  const CheckpointIndex index = Source(2, 3);
  ASSERT_OK_AND_ASSIGN(const auto page, InspectPage(index, "", 0));
  EXPECT_EQ(page.index().source(), "/c#optimizer");
  EXPECT_EQ(page.index().format(), "torch");
  EXPECT_EQ(page.value_count(), 3u);
  EXPECT_EQ(page.opaque_count(), 1u);
  EXPECT_THAT(page.index().values(), IsEmpty());
  EXPECT_THAT(page.index().opaque(), IsEmpty());
  EXPECT_EQ(page.next_page_token(), "");
}

TEST(InspectPage, HasValuesBehindTheTensors) {
  const CheckpointIndex index = Source(2, 3);
  for (const auto& [page_size, pages] : {std::pair(0u, 1), std::pair(1u, 6), std::pair(4u, 2)}) {
    const All all = Read(index, page_size, true);
    EXPECT_EQ(all.pages, pages);
    EXPECT_THAT(all.names, ElementsAre("t0", "t1"));
    EXPECT_EQ(all.values, index.values);
    EXPECT_EQ(all.opaque, index.opaque);
  }
  EXPECT_THAT(InspectPage(index, "7", 0, true),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST(InspectPage, IsCutWhereManyValuesFillIt) {
  CheckpointIndex index = Source(0, 0);
  for (int i = 0; i < 30; ++i) index.values.emplace(std::to_string(i), std::string(60'000, '1'));
  const All all = Read(index, 0, true);
  EXPECT_EQ(all.pages, 2);
  EXPECT_EQ(all.values, index.values);
}

TEST(InspectPage, LeavesOutTheJsonOfALongValue) {
  CheckpointIndex index = Source(0, 0);
  index.values = {{"long", std::string((64 << 10) + 1, '1')}, {"short", "1"}};
  EXPECT_THAT(Read(index, 0, true).values, UnorderedElementsAre(Pair("long", ""), Pair("short", "1")));
}

TEST(InspectPage, OfAnEmptySourceIsOne) {
  CheckpointIndex index;
  EXPECT_EQ(Read(index, 0, true).pages, 1);
}

}  // namespace
}  // namespace ckptd
