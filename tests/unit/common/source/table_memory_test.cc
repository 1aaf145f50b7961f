#include "common/source/table_memory.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/common/source/file_bytes.h"

namespace ckptd {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

// A file of so many tensors of one byte each.
std::string Tensors(size_t count, const std::string& prefix = "") {
  std::string json = "{";
  for (size_t i = 0; i < count; ++i) {
    json += fmt::format(R"({}"{}t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                        i > 0 ? "," : "", prefix, i, i, i + 1);
  }
  return FileBytes(json + "}", std::string(count, 'x'));
}

class TableMemory : public testing::Test {
 protected:
  TableMemory() {
    SetAdmitTables([this](uint64_t bytes) -> absl::Status {
      asked_.push_back(bytes);
      if (bytes <= most_) return absl::OkStatus();
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory, "too much");
    });
  }
  ~TableMemory() override { SetAdmitTables(nullptr); }

  const TempFolder folder_;
  uint64_t most_ = uint64_t{1} << 40;
  std::vector<uint64_t> asked_;
};

TEST_F(TableMemory, IsAskedForAsTheHeaderSays) {
  const std::string bytes = Tensors(3000);
  const std::string path = folder_.Write("m.safetensors", bytes);
  EXPECT_OK(OpenCheckpoint(path));
  EXPECT_THAT(asked_, SizeIs(1));
  EXPECT_THAT(asked_, Each(Le(bytes.size() * kTableBytesPerHeaderByte)));
  EXPECT_GT(asked_.at(0), (bytes.size() - 100'000) * kTableBytesPerHeaderByte);
}

TEST_F(TableMemory, ThatIsRefusedLeavesTheHeaderUnread) {
  most_ = 1000;
  const std::string path = folder_.Write("m.safetensors", Tensors(3000));
  const absl::Status refused = OpenCheckpoint(path).status();
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_THAT(refused, Says("reading the header of " + path));
  EXPECT_EQ(FactsOf(refused).at("file"), path);
  EXPECT_THAT(Recognise(path), FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
}

TEST_F(TableMemory, CountsAllFilesOfASource) {
  folder_.Write("model-00001-of-00002.safetensors", Tensors(3000, "a"));
  folder_.Write("model-00002-of-00002.safetensors", Tensors(3000, "b"));
  EXPECT_OK(OpenCheckpoint(folder_.path()));
  ASSERT_THAT(asked_, SizeIs(2));
  EXPECT_EQ(asked_[1], 2 * asked_[0]);
}

TEST_F(TableMemory, OfASmallHeaderIsNotAskedFor) {
  most_ = 0;
  EXPECT_OK(OpenCheckpoint(folder_.Write("m.safetensors", Tensors(100))));
  EXPECT_THAT(asked_, IsEmpty());
}

}  // namespace
}  // namespace ckptd
