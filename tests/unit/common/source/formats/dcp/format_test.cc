#include "common/source/formats/dcp/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/reasons.h"
#include "common/source/piece.h"
#include "tests/testing/dcp_writer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_bytes.h"

namespace ckptd {
namespace {

using absl::StatusCode;
using pickles::Dict;
using pickles::Int;
using pickles::Text;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr char kFirst[] = "__0_0.distcp";
constexpr char kSecond[] = "__1_0.distcp";

std::string Text8(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class DcpFormatTest : public testing::Test {
 protected:
  // A model of U8 tensors: "w" of (4, 2) in two chunks by rows, "b" of (3).
  DcpFormatTest() {
    writer_.AddTensor("model.w", {"model", "w"}, Dtype::kU8, {4, 2},
                      {{kFirst, {0, 0}, {3, 2}, "abcdef"}, {kSecond, {3, 0}, {1, 2}, "gh"}});
    writer_.AddTensor("model.b", {"model", "b"}, Dtype::kU8, {3}, {{kSecond, {0}, {3}, "xyz"}});
  }
  absl::StatusOr<OpenedCheckpoint> Read(const std::string& part = "",
                                        const std::string& source = "/d") {
    if (writes_) writer_.Write(storage_, "/d");
    CKPTD_ASSIGN_OR_RETURN(Listing listing, ListSource(storage_, source));
    listing.part = part;
    EXPECT_TRUE(format_.Recognise(storage_, listing));
    return format_.ReadIndex(storage_, listing);
  }
  std::string BytesOf(const CheckpointIndex& index, const std::string& name) const {
    const std::vector<std::byte> bytes = TensorBytes(storage_, index, *index.Find(name));
    return Text8(bytes);
  }
  void ExpectDamaged(const std::string& words) {
    const auto read = Read();
    EXPECT_THAT(read, FailsWith(StatusCode::kDataLoss, reason::kSourceInvalid));
    EXPECT_THAT(read, Says(words));
    EXPECT_NE(FactsOf(read.status())["file"], "");
  }

  const DcpFormat format_;
  DcpWriter writer_;
  MemoryStorage storage_;
  bool writes_ = true;
};

TEST_F(DcpFormatTest, FindsEachChunkInItsFile) {
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  const CheckpointIndex& index = opened.index;
  EXPECT_EQ(BytesOf(index, "w"), "abcdefgh");
  EXPECT_EQ(BytesOf(index, "b"), "xyz");
  EXPECT_THAT(index.Find("w")->pieces, SizeIs(2));
  ASSERT_THAT(index.files, SizeIs(3));
  EXPECT_EQ(index.files[0].path, std::string("/d/") + kFirst);
  EXPECT_EQ(index.files[2].path, "/d/.metadata");
  EXPECT_THAT(index.metadata, ElementsAre(Pair("dcp_version", "1.0.0")));
  EXPECT_THAT(opened.remarks, ElementsAre(HasSubstr("without \"model.\"")));
}

TEST_F(DcpFormatTest, ReadsTheFileThatIsNamed) {
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint same, Read("", "/d/.metadata"));
  EXPECT_EQ(BytesOf(same.index, "w"), "abcdefgh");
}

TEST_F(DcpFormatTest, TakesChunksOnAnyGrid) {
  writer_.AddTensor("model.g", {"model", "g"}, Dtype::kU8, {2, 3},
                    {{kFirst, {0, 1}, {1, 2}, "BC"},
                     {kSecond, {0, 0}, {2, 1}, "AD"},
                     {kFirst, {1, 1}, {1, 2}, "EF"}});
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_EQ(BytesOf(opened.index, "g"), "ABCDEF");
}

TEST_F(DcpFormatTest, TakesNoNoticeOfChunksThatAreEmptyOrThereTwice) {
  writer_.AddTensor("model.e", {"model", "e"}, Dtype::kU8, {2},
                    {{kFirst, {0}, {2}, "ab"}, {kSecond, {2}, {0}, ""}, {kSecond, {0}, {2}, "ab"}});
  writer_.AddTensor("model.none", {"model", "none"}, Dtype::kF32, {0, 4}, {});
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_EQ(BytesOf(opened.index, "e"), "ab");
  EXPECT_THAT(opened.index.Find("e")->pieces, SizeIs(1));
  EXPECT_THAT(opened.index.Find("none")->pieces, SizeIs(1));
}

TEST_F(DcpFormatTest, TakesScalarsAndTensorsOfOtherOrders) {
  writer_.AddTensor("model.s", {"model", "s"}, Dtype::kI64, {}, {{kFirst, {}, {}, "12345678"}});
  writer_.AddTensor("model.t", {"model", "t"}, Dtype::kU8, {2, 2},
                    {{kFirst, {0, 0}, {2, 2}, "acbd", {1, 2}}});
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_EQ(BytesOf(opened.index, "s"), "12345678");
  EXPECT_EQ(BytesOf(opened.index, "t"), "abcd");
  EXPECT_THAT(opened.index.Find("t")->pieces[0].strides, ElementsAre(1, 2));
}

TEST_F(DcpFormatTest, ReadsItemsOfOtherForms) {
  using namespace pickles;  // NOLINT(google-build-using-namespace)
  // Records in another order, so that the whole of it must be read.
  std::vector<ZipRecord> records = TorchRecords(
      Pickle(TensorV2(pickles::Storage("Byte", "0", 2), 0, {2}, {1})), {{"0", "ok"}});
  std::reverse(records.begin(), records.end());
  writer_.AddTensor("model.o", {"model", "o"}, Dtype::kU8, {2}, {{kFirst, {0}, {2}, "no"}});
  writer_.located.pop_back();
  writer_.AddItem(kFirst, "model.o", Shape{0}, WriteZip(records).bytes);
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_EQ(BytesOf(opened.index, "o"), "ok");
}

TEST_F(DcpFormatTest, HandsObjectsOverAsTheyAreAndNamesTheirValues) {
  writer_.AddObject("model.lr", {"model", "lr"}, kFirst, pickles::Float("0.5"));
  writer_.AddObject("model.conf", {"model", "conf"}, kFirst,
                    Dict({{Text("a"), Int(1)},
                          {Text("ns"), pickles::Object(pickles::Global("argparse", "Namespace"),
                                                       Dict({{Text("x"), Int(2)}}))}}));
  writer_.AddItem(kFirst, "model.raw", std::nullopt, "just bytes");
  writer_.described.emplace_back("model.raw", writer_.described.back().second);
  writer_.paths.emplace_back("model.raw", pickles::Tuple({Text("model"), Text("raw")}));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  const CheckpointIndex& index = opened.index;
  EXPECT_EQ(BytesOf(index, "raw"), "just bytes");
  EXPECT_EQ(BytesOf(index, "lr"), TorchZip(pickles::Float("0.5"), {}));
  EXPECT_EQ(index.Find("lr")->kind, EntryKind::kObject);
  EXPECT_EQ(index.Find("lr")->dtype, Dtype::kU8);
  EXPECT_THAT(index.values, UnorderedElementsAre(Pair("lr", "0.5"), Pair("conf.a", "1")));
  EXPECT_THAT(index.opaque,
              UnorderedElementsAre(Pair("conf.ns", "argparse.Namespace"), Pair("raw", "bytes")));
}

// Longer than heads are, so that it is read as a whole.
TEST_F(DcpFormatTest, ReadsAnObjectOnceForAllItsNames) {
  const std::string item = TorchZip(Text(std::string(5000, 't')), {});
  const uint64_t offset = writer_.files[kFirst].size();
  for (int i = 0; i < 20; ++i) {
    const std::string key = "model.o" + std::to_string(i);
    writer_.AddObject(key, {"model", "o" + std::to_string(i)}, kSecond, pickles::None());
    writer_.located.pop_back();
    writer_.Locate(kFirst, key, std::nullopt, offset, item.size());
  }
  writer_.files[kFirst] += item;
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(opened.index.values.count("o" + std::to_string(i)), 1u) << i;
  }
}

// As torch never writes them: the storage stands in front, so each is read as a whole.
TEST_F(DcpFormatTest, RefusesItemsThatLieInEachOther) {
  std::vector<ZipRecord> records = TorchRecords(
      pickles::Pickle(pickles::TensorV2(pickles::Storage("Byte", "0", 2), 0, {2}, {1})),
      {{"0", "ab"}});
  std::swap(records.front(), records[2]);
  const std::string item = WriteZip(records).bytes;
  for (int i = 0; i < 20; ++i) {
    const std::string key = "model.t" + std::to_string(i);
    writer_.AddTensor(key, {"model", "t" + std::to_string(i)}, Dtype::kU8, {2},
                      {{kSecond, {0}, {2}, "xy"}});
    writer_.located.pop_back();
    writer_.Locate("__9_0.distcp", key, Shape{0}, 0, item.size());
  }
  writer_.files["__9_0.distcp"] = item;
  ExpectDamaged("its items lie in each other");
}

TEST_F(DcpFormatTest, RefusesAnObjectThatWouldRunSomething) {
  writer_.AddObject("model.x", {"model", "x"}, kFirst,
                    pickles::Call(pickles::Global("os", "system"), {Text("true")}));
  EXPECT_THAT(Read(), FailsWith(StatusCode::kPermissionDenied, reason::kSourceUnsafe));
}

TEST_F(DcpFormatTest, RefusesMetadataThatWouldRunSomething) {
  writer_.more_fields.emplace_back(
      "x", pickles::Call(pickles::Global("os", "system"), {Text("true")}));
  EXPECT_THAT(Read(), FailsWith(StatusCode::kPermissionDenied, reason::kSourceUnsafe));
  EXPECT_EQ(FactsOf(Read().status())["file"], "/d/.metadata");
}

TEST_F(DcpFormatTest, TakesMetadataWithFieldsAndClassesThatItDoesNotKnow) {
  writer_.more_fields.emplace_back(
      "all_local_plans",
      pickles::Object(pickles::Global("megatron.core.dist_checkpointing", "MCoreSavePlan"),
                      Dict({})));
  EXPECT_OK(Read());
}

TEST_F(DcpFormatTest, RefusesChunksThatOverlapOrLeaveHoles) {
  writer_.AddTensor("model.x", {"model", "x"}, Dtype::kU8, {4},
                    {{kFirst, {0}, {3}, "abc"}, {kSecond, {2}, {2}, "cd"}});
  ExpectDamaged("its tensor \"model.x\" is not whole: the chunk of (3) at (0) overlaps");
  EXPECT_EQ(FactsOf(Read().status())["tensor"], "model.x");
  writer_.described.pop_back();
  writer_.AddTensor("model.y", {"model", "y"}, Dtype::kU8, {4}, {{kFirst, {0}, {3}, "abc"}});
  ExpectDamaged("its tensor \"model.y\" is not whole: 1 of its 4 elements are in no chunk");
}

TEST_F(DcpFormatTest, RefusesAChunkThatNoFileHas) {
  writer_.located.erase(writer_.located.begin());
  ExpectDamaged("no file has the chunk of (3, 2) at (0, 0)");
}

TEST_F(DcpFormatTest, RefusesAnItemThatIsAnotherTensor) {
  DcpWriter other;
  other.AddTensor("model.z", {"model", "z"}, Dtype::kU8, {5}, {{"elsewhere", {0}, {5}, "abcde"}});
  writer_.described.push_back(other.described.front());
  writer_.AddItem(kFirst, "model.z", Shape{0}, DcpWriter(writer_).files[kFirst]);
  ExpectDamaged("is U8 of (3, 2), where .metadata has a chunk of \"model.z\" that is U8 of (5)");
}

TEST_F(DcpFormatTest, ListsAllMissingFilesAtOnce) {
  writer_.Write(storage_, "/d");
  MemoryStorage copied;
  copied.Write("/d/.metadata", storage_.Bytes("/d/.metadata"));
  Listing listing = ListSource(copied, "/d").value();
  for (const absl::Status& status :
       {format_.Check(copied, listing), format_.ReadIndex(copied, listing).status()}) {
    EXPECT_THAT(status, FailsWith(StatusCode::kNotFound, reason::kSourceNotFound));
    EXPECT_THAT(status, Says("it lacks \"__0_0.distcp\", \"__1_0.distcp\""));
  }
}

TEST_F(DcpFormatTest, RefusesFilesOutsideOfItsFolder) {
  for (const char* name : {"/etc/passwd", "../d/__0_0.distcp", "a/../../b", "C:\\x"}) {
    DcpWriter writer;
    writer.AddTensor("w", {"w"}, Dtype::kU8, {1}, {{name, {0}, {1}, "x"}});
    storage_.Write("/d/.metadata", writer.Metadata());
    writes_ = false;
    EXPECT_THAT(Read(), FailsWith(StatusCode::kInvalidArgument, reason::kSourceInvalid)) << name;
  }
}

TEST_F(DcpFormatTest, RefusesCompressedItemsByName) {
  writer_.AddTensor("model.c", {"model", "c"}, Dtype::kU8, {1}, {{kFirst, {0}, {1}, "x"}});
  writer_.located.pop_back();
  writer_.Locate(kFirst, "model.c", Shape{0}, 0, 5,
                 {{"transform_descriptors", pickles::List({Text("stream.zstd/1")})}});
  EXPECT_THAT(Read(), FailsWith(StatusCode::kUnimplemented, reason::kSourceUnsupported));
  EXPECT_THAT(Read(), Says("stream.zstd/1"));
}

TEST_F(DcpFormatTest, RefusesASaveOfRanksOnTheirOwn) {
  storage_.Write("/r/__0.metadata", writer_.Metadata());
  storage_.Write("/r/__0_0.distcp", "");
  writes_ = false;
  EXPECT_THAT(Read("", "/r"), FailsWith(StatusCode::kUnimplemented, reason::kSourceUnsupported));
}

TEST_F(DcpFormatTest, SaysHowMegatronsZarrBecomesReadable) {
  storage_.Write("/z/metadata.json", R"({"sharded_backend": "zarr", "sharded_backend_version": 1})");
  storage_.Write("/z/common.pt", "");
  storage_.Write("/z/model.embedding.weight/.zarray", "{}");
  writes_ = false;
  EXPECT_THAT(Read("", "/z"), FailsWith(StatusCode::kUnimplemented, reason::kSourceUnsupported));
  EXPECT_THAT(Read("", "/z"), Says("--ckpt-convert-format torch_dist"));
  storage_.Write("/z/metadata.json", R"({"sharded_backend": "torch_dist"})");
  EXPECT_FALSE(format_.Recognise(storage_, ListSource(storage_, "/z").value()));
}

TEST_F(DcpFormatTest, ReadsTheFolderOfAcceleratesModelOrOptimizer) {
  writer_.Write(storage_, "/a/pytorch_model_fsdp_0");
  DcpWriter optimizer;
  optimizer.AddTensor("optimizer.state.w.step", {"optimizer", "state", "w", "step"}, Dtype::kU8,
                      {1}, {{kFirst, {0}, {1}, "7"}});
  optimizer.Write(storage_, "/a/optimizer_0");
  writes_ = false;
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint model, Read("", "/a"));
  EXPECT_EQ(BytesOf(model.index, "w"), "abcdefgh");
  EXPECT_THAT(model.remarks.front(), HasSubstr("name /a#optimizer"));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint state, Read("optimizer", "/a"));
  EXPECT_EQ(BytesOf(state.index, "state.w.step"), "7");
  EXPECT_EQ(state.index.Find("state.w.step")->kind, EntryKind::kOptimizer);
  Listing other = ListSource(storage_, "/a").value();
  other.part = "nothing";
  EXPECT_THAT(format_.Check(storage_, other), Says("(#model, #optimizer)"));
}

TEST_F(DcpFormatTest, SaysThatASaveOfAccelerateDidNotFinish) {
  storage_.Write("/a/pytorch_model_fsdp_0/__0_0.distcp", "");
  writes_ = false;
  EXPECT_THAT(Read("", "/a"), FailsWith(StatusCode::kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(Read("", "/a"), Says("the save did not finish"));
}

TEST_F(DcpFormatTest, SaysThatARanksPieceIsInAFolder) {
  const auto read = Read("", std::string("/d/") + kFirst);
  EXPECT_THAT(read, FailsWith(StatusCode::kUnimplemented, reason::kSourceUnsupported));
  EXPECT_THAT(read, Says("it is one rank's piece of a DCP save; name its folder"));
}

TEST_F(DcpFormatTest, LeavesAFileThatMerelyHasAPiecesNameToOthers) {
  // The length of a safetensors header: 336 bytes.
  storage_.Write("/f/m.distcp", std::string("P\x01\0\0\0\0\0\0{", 9));
  EXPECT_FALSE(format_.Recognise(storage_, ListSource(storage_, "/f/m.distcp").value()));
}

TEST_F(DcpFormatTest, LeavesAFolderToTheSafetensorsInIt) {
  writer_.Write(storage_, "/d");
  storage_.Write("/d/model.safetensors", "");
  Listing listing = ListSource(storage_, "/d").value();
  EXPECT_FALSE(format_.Recognise(storage_, listing));
  listing.part = "optimizer";
  EXPECT_TRUE(format_.Recognise(storage_, listing));
}

TEST_F(DcpFormatTest, AddsWhatLiesBeside) {
  storage_.Write("/d/common.pt", TorchZip(Dict({{Text("iteration"), Int(12)}}), {}));
  storage_.Write("/d/metadata.json", R"({"sharded_backend": "torch_dist", "version": 1})");
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(opened.index.values, ElementsAre(Pair("iteration", "12")));
  EXPECT_THAT(opened.index.metadata, UnorderedElementsAre(Pair("sharded_backend", "torch_dist"),
                                                          Pair("version", "1"),
                                                          Pair("dcp_version", "1.0.0")));
  EXPECT_EQ(opened.index.files.back().path, "/d/.metadata");
}

TEST_F(DcpFormatTest, SaysWhatLiesBesideAndCannotBeRead) {
  storage_.Write("/d/common.pt", "cut");
  storage_.Write("/d/metadata.json", "[");
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(opened.remarks, testing::Contains(HasSubstr("its common.pt is left out")));
  EXPECT_THAT(opened.remarks, testing::Contains(HasSubstr("its metadata.json is left out")));
}

TEST_F(DcpFormatTest, PutsFlatRunsBackIntoTheirTensors) {
  // Shards of (2, 2) of a tensor of (2, 4). The first run of the first one ends in its second row.
  writer_.AddTensor("model.flat", {"model", "flat"}, Dtype::kU8, {1, 2, 4},
                    {{kFirst, {0, 0, 0}, {1, 1, 3}, "abe"},
                     {kFirst, {0, 0, 3}, {1, 1, 1}, "f"},
                     {kSecond, {0, 1, 0}, {1, 1, 4}, "cdgh"}});
  writer_.more_fields.emplace_back(
      "mcore_data",
      Dict({{Text("model.flat"), Dict({{Text("nd_reformulated_orig_global_shape"),
                                        pickles::Ints({2, 4})}})}}));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(opened.index.Find("flat")->shape, ElementsAre(2, 4));
  EXPECT_EQ(BytesOf(opened.index, "flat"), "abcdefgh");
}

TEST_F(DcpFormatTest, MeansNothingElseAsLongAsItsMetadataIsThere) {
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  const Listing listing = ListSource(storage_, "/d").value();
  EXPECT_TRUE(*format_.StillMeans(storage_, listing, opened.index.files));
  std::vector<SourceFile> others = opened.index.files;
  others.back().path = "/e/.metadata";
  EXPECT_FALSE(*format_.StillMeans(storage_, listing, others));
}

}  // namespace
}  // namespace ckptd
