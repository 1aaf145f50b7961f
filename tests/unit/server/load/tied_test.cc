#include "server/load/tied.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/byte_swap.h"
#include "common/base/reasons.h"
#include "common/source/open.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kBytes = (2 << 20) + 5;

// One file with tensors "a", "b" and "c" of the same shape.
class TiedTest : public testing::Test {
 protected:
  // Unlike the others at `byte` of "c".
  CheckpointIndex Source(uint64_t byte) {
    std::vector<std::byte> same(kBytes, std::byte{7});
    std::vector<std::byte> other = same;
    other[byte] = std::byte{8};
    const std::vector<TensorToWrite> tensors = {{"a", Dtype::kU8, {kBytes}},
                                                {"b", Dtype::kU8, {kBytes}},
                                                {"c", Dtype::kU8, {kBytes}}};
    const std::vector<std::span<const std::byte>> data = {same, same, other};
    EXPECT_OK(WriteSafetensors(folder_ / "m.safetensors", tensors, {}, data));
    return OpenCheckpoint(folder_ / "m.safetensors").value();
  }
  // In two, after so many elements.
  static void Split(std::vector<Piece>& pieces, uint64_t after) {
    Piece second = pieces.at(0);
    pieces[0].bytes = pieces[0].box.extents[0] = after;
    second.offset += after;
    second.bytes = second.box.extents[0] = kBytes - after;
    second.box.offsets[0] = after;
    pieces.push_back(second);
  }
  absl::Status Check(const CheckpointIndex& index, const std::string& name,
                     std::vector<std::string> aliases) {
    RankLayout layout;
    TargetSpec target;
    target.name = name;
    target.aliases = std::move(aliases);
    layout.targets = {target};
    const std::vector<const RankLayout*> layouts = {&layout, &layout};
    return CheckTied(index, layouts, [this] { return ++asked_ > most_ ? stop_ : absl::Status(); });
  }

  TempFolder folder_;
  int asked_ = 0;
  int most_ = 1000;
  absl::Status stop_;
};

TEST_F(TiedTest, EqualTensorsAreFineAndComparedOnce) {
  EXPECT_OK(Check(Source(0), "a", {"b"}));
  EXPECT_EQ(asked_, 3) << "for each MiB";
}

TEST_F(TiedTest, OnesThatDifferAnywhereAreRefusedByName) {
  for (const uint64_t byte : {uint64_t{0}, (uint64_t{1} << 20) - 1, uint64_t{1} << 20, kBytes - 1}) {
    const absl::Status refused = Check(Source(byte), "a", {"b", "c"});
    EXPECT_THAT(refused, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("'a' and 'c' are to share memory, and have different values"),
                      HasSubstr("pass tied='first' to take that of 'a'")));
  }
}

TEST_F(TiedTest, ValuesCountInEitherByteOrder) {
  std::vector<std::byte> words(kBytes - 1);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::byte>(i % 251);
  std::vector<std::byte> turned(words.size());
  SwapBytes(4, words.data(), turned.data(), words.size());
  const Shape shape = {(kBytes - 1) / 4};
  const std::vector<TensorToWrite> tensors = {{"a", Dtype::kF32, shape}, {"b", Dtype::kF32, shape}};
  const std::vector<std::span<const std::byte>> data = {words, turned};
  ASSERT_OK(WriteSafetensors(folder_ / "m.safetensors", tensors, {}, data));
  CheckpointIndex index = OpenCheckpoint(folder_ / "m.safetensors").value();
  EXPECT_FALSE(Check(index, "a", {"b"}).ok());
  index.tensors[1].big_endian = true;
  EXPECT_OK(Check(index, "a", {"b"}));
}

TEST_F(TiedTest, ANameThatTheSourceLacksIsNothingToCompare) {
  EXPECT_OK(Check(Source(0), "c", {"d"}));
  EXPECT_OK(Check(Source(0), "d", {"c"}));
  EXPECT_EQ(asked_, 0);
  EXPECT_FALSE(Check(Source(0), "d", {"a", "c"}).ok());
}

TEST_F(TiedTest, AnAliasOfTheSourceIsTheSameTensor) {
  CheckpointIndex index = Source(0);
  index.aliases["d"] = "c";
  EXPECT_OK(Check(index, "c", {"d"}));
  EXPECT_EQ(asked_, 0);
}

TEST_F(TiedTest, OnesThatAreSplitInDifferentWaysAreRefused) {
  CheckpointIndex index = Source(0);
  Split(index.tensors[1].pieces, 5);
  EXPECT_THAT(std::string(Check(index, "a", {"b"}).message()), HasSubstr("different ways"));
  Split(index.tensors[0].pieces, 7);
  EXPECT_THAT(std::string(Check(index, "a", {"b"}).message()), HasSubstr("different ways"));
}

TEST_F(TiedTest, OnesThatAreSplitAlikeAreCompared) {
  CheckpointIndex index = Source(kBytes - 1);
  for (TensorEntry& tensor : index.tensors) Split(tensor.pieces, 5);
  EXPECT_OK(Check(index, "a", {"b"}));
  EXPECT_THAT(std::string(Check(index, "a", {"c"}).message()), HasSubstr("different values"));
}

TEST_F(TiedTest, WhoeverNeedsItNoMoreEndsIt) {
  most_ = 1;
  stop_ = absl::CancelledError("enough");
  EXPECT_EQ(Check(Source(0), "a", {"b"}), stop_);
}

// Tensors of 2 x 3, the first one as its index has it, the other one transposed in the file.
TEST_F(TiedTest, OnesWithStridesAreComparedWhereTheyLieAlike) {
  std::vector<std::byte> bytes(12);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 6);
  bytes[1] = std::byte{77};  // lies in a gap of "a"
  folder_.Write("raw", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  CheckpointIndex index;
  index.files.emplace_back().path = folder_ / "raw";
  index.files[0].bytes = bytes.size();
  for (const char* name : {"a", "b"}) {
    TensorEntry& tensor = index.tensors.emplace_back();
    tensor.name = name;
    tensor.dtype = Dtype::kU8;
    tensor.shape = {2, 2};
    const uint64_t offset = name[0] == 'a' ? 0 : 6;
    tensor.pieces = {{0, offset, 4, {{0, 0}, {2, 2}}, {2, 3}}};
  }
  EXPECT_OK(Check(index, "a", {"b"}));
  index.tensors[1].pieces[0].strides = {3, 2};
  EXPECT_THAT(std::string(Check(index, "a", {"b"}).message()), HasSubstr("different ways"));
  index.tensors[1].pieces[0] = {0, 1, 4, {{0, 0}, {2, 2}}, {2, 3}};
  EXPECT_THAT(std::string(Check(index, "a", {"b"}).message()), HasSubstr("different values"));
}

}  // namespace
}  // namespace ckptd
