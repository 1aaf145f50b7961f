#include "common/source/torch/file.h"

#include <memory>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/torch_writer.h"

namespace ckptd::torch {
namespace {

using pickles::Dict;
using pickles::Int;
using pickles::None;
using pickles::Text;

constexpr char kPath[] = "/m.pt";
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

MemoryStorage StorageWith(const std::string& bytes) {
  MemoryStorage storage;
  storage.Write(kPath, bytes);
  return storage;
}

absl::StatusOr<File> Read(const std::string& bytes) {
  return ReadFile(StorageWith(bytes), kPath);
}

bool IsRecognised(const std::string& bytes) {
  return IsTorchFile(*StorageWith(bytes).Open(kPath).value());
}

const std::string kRoot = Dict({{Text("w"), pickles::TensorV2(pickles::Storage("Float", "0", 2), 0,
                                                              {2}, {1})}});

TEST(TorchZip, HoldsItsPickleAndItsStorages) {
  const std::string bytes = TorchZip(kRoot, {{"0", "12345678"}, {"more/1", "x"}});
  ASSERT_OK_AND_ASSIGN(const File file, Read(bytes));
  EXPECT_EQ(file.form, "zip");
  EXPECT_FALSE(file.big_endian);
  EXPECT_NE(file.document.root->Get("w"), nullptr);
  ASSERT_EQ(file.storages.size(), 2u);
  const StorageBytes& storage = file.storages.at("0");
  EXPECT_EQ(bytes.substr(storage.offset, storage.bytes), "12345678");
  EXPECT_EQ(file.storages.count("more/1"), 1u);
  EXPECT_NE(file.file.header_hash, 0u);
}

TEST(TorchZip, SaysItsByteOrder) {
  ASSERT_OK_AND_ASSIGN(const File big, Read(TorchZip(kRoot, {}, "big")));
  EXPECT_TRUE(big.big_endian);
  EXPECT_THAT(Read(TorchZip(kRoot, {}, "middle")), FailsWith(kDataLoss, reason::kSourceInvalid));
  std::vector<ZipRecord> records = TorchRecords(pickles::Pickle(kRoot), {});
  std::erase_if(records, [](const ZipRecord& record) { return record.name == "m/byteorder"; });
  ASSERT_OK_AND_ASSIGN(const File old, Read(WriteZip(records).bytes));
  EXPECT_FALSE(old.big_endian);
}

TEST(TorchZip, NamesStoragesThatAreCompressed) {
  std::vector<ZipRecord> records = {{.name = "m/data.pkl", .bytes = pickles::Pickle(kRoot)},
                                    DeflatedRecord("m/data/0", "12345678")};
  ASSERT_OK_AND_ASSIGN(const File file, Read(WriteZip(records).bytes));
  EXPECT_TRUE(file.storages.at("0").is_deflated);
}

struct OtherZip {
  const char* name;
  std::vector<ZipRecord> records;
  const char* says;
};
class ZipOfSomethingElse : public testing::TestWithParam<OtherZip> {};
TEST_P(ZipOfSomethingElse, IsNamed) {
  EXPECT_THAT(Read(WriteZip(GetParam().records).bytes),
              testing::AllOf(FailsWith(kUnimplemented, reason::kSourceUnsupported),
                             Says(GetParam().says)));
}
INSTANTIATE_TEST_SUITE_P(
    All, ZipOfSomethingElse,
    testing::Values(OtherZip{"Npz", {{.name = "w.npy", .bytes = "x"}}, "w.npy"},
                    OtherZip{"TorchScript",
                             {{.name = "m/data.pkl", .bytes = pickles::Pickle(kRoot)},
                              {.name = "m/constants.pkl", .bytes = "x"}},
                             "TorchScript"},
                    OtherZip{"ANewerVersion",
                             {{.name = "m/data.pkl", .bytes = pickles::Pickle(kRoot)},
                              {.name = "m/version", .bytes = "11\n"}},
                             "version 11"}),
    [](const auto& one) { return one.param.name; });

TEST(TorchZip, WithTwoDtypesOfAStorageIsRefused) {
  const std::string root = pickles::List(
      {pickles::Storage("Float", "0", 2), pickles::Storage("Int", "0", 2)});
  EXPECT_THAT(Read(TorchZip(root, {{"0", "12345678"}})),
              testing::AllOf(FailsWith(kDataLoss, reason::kSourceInvalid),
                             Says("different dtypes in storage \"0\"")));
  // torch knows bytes by two names.
  EXPECT_OK(Read(TorchZip(pickles::List({pickles::Storage("Byte", "0", 8),
                                         pickles::TensorV3("0", 8, 0, {4}, {1}, "uint16")}),
                          {{"0", "12345678"}})));
}

TEST(TorchZip, WithRecordsThatDifferInCaseAloneIsRefused) {
  EXPECT_THAT(Read(TorchZip(kRoot, {{"0", "12345678"}, {"x", "a"}, {"X", "b"}})),
              testing::AllOf(FailsWith(kDataLoss, reason::kSourceInvalid), Says("in case alone")));
}

TEST(TorchZip, WithALongRecordForAShortPickleIsRefused) {
  std::string pickle = pickles::Pickle(kRoot);
  pickle.resize(pickle::kLongPickle + 1);
  EXPECT_THAT(Read(WriteZip({{.name = "m/data.pkl", .bytes = pickle}}).bytes),
              FailsWith(kDataLoss, reason::kSourceInvalid));
}

TEST(TorchZip, WithTwoPicklesIsRefused) {
  EXPECT_THAT(Read(WriteZip({{.name = "a/data.pkl", .bytes = pickles::Pickle(kRoot)},
                             {.name = "b/data.pkl", .bytes = pickles::Pickle(kRoot)}})
                       .bytes),
              testing::AllOf(FailsWith(kDataLoss, reason::kSourceInvalid), Says("several")));
}

TEST(TorchZip, WithAPickleThatExecutesIsRefused) {
  const std::string root = pickles::Call(pickles::Global("os", "system"), {Text("true")});
  const auto read = Read(TorchZip(root, {}));
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kPermissionDenied, reason::kSourceUnsafe));
  EXPECT_EQ(FactsOf(read.status())["file"], kPath);
}

TEST(TorchFile, OfAPartOfAnObjectIsRead) {
  const std::string zip = TorchZip(kRoot, {{"0", "12345678"}});
  const std::string bytes = "front" + zip + "back";
  const MemoryStorage storage = StorageWith(bytes);
  ASSERT_OK_AND_ASSIGN(const File file, ReadFile(storage.Open(kPath).value(), 5, zip.size()));
  const StorageBytes& found = file.storages.at("0");
  EXPECT_EQ(bytes.substr(found.offset, found.bytes), "12345678");
  EXPECT_FALSE(ReadFile(storage.Open(kPath).value(), 5, bytes.size()).ok());
}

// ---- The form before torch 1.6.

const std::string kLegacyRoot =
    Dict({{Text("a"), pickles::TensorV2(pickles::Storage("Float", "20", 3, {None()}), 0, {3}, {1})},
          {Text("b"), pickles::TensorV2(pickles::Storage("Byte", "10", 2, {None()}), 0, {2}, {1})}});

TEST(TorchLegacy, HoldsItsStoragesInTheOrderOfItsKeys) {
  const std::string bytes = TorchLegacy(kLegacyRoot, {{"10", 2, "bb"}, {"20", 3, "aaaabbbbcccc"}});
  ASSERT_OK_AND_ASSIGN(const File file, Read(bytes));
  EXPECT_EQ(file.form, "legacy");
  const StorageBytes& storage = file.storages.at("20");
  EXPECT_EQ(bytes.substr(storage.offset, storage.bytes), "aaaabbbbcccc");
  EXPECT_EQ(file.storages.at("10").bytes, 2u);
}

TEST(TorchLegacy, IsBigEndianWhereItsCountsAre) {
  const std::string bytes =
      TorchLegacy(kLegacyRoot, {{"10", uint64_t{2} << 56, "bb"},
                                {"20", uint64_t{3} << 56, "aaaabbbbcccc"}});
  ASSERT_OK_AND_ASSIGN(const File file, Read(bytes));
  EXPECT_TRUE(file.big_endian);
}

TEST(TorchLegacy, WithOtherCountsIsRefused) {
  for (const uint64_t count : {uint64_t{4}, uint64_t{1} << 40, uint64_t{3} << 56}) {
    const std::string bytes =
        TorchLegacy(kLegacyRoot, {{"10", 2, "bb"}, {"20", count, "aaaabbbbcccc"}});
    EXPECT_THAT(Read(bytes), testing::AllOf(FailsWith(kDataLoss, reason::kSourceInvalid),
                                            Says("other lengths")))
        << count;
  }
}

TEST(TorchLegacy, WithAStorageThatNothingDescribesIsRefused) {
  EXPECT_THAT(Read(TorchLegacy(kLegacyRoot, {{"10", 2, "bb"}, {"30", 1, "x"}})),
              testing::AllOf(FailsWith(kDataLoss, reason::kSourceInvalid), Says("describes")));
}

TEST(TorchLegacy, WithTwoDescriptionsOfAStorageIsRefused) {
  const std::string root = pickles::List(
      {pickles::Storage("Byte", "10", 3), pickles::Storage("Byte", "10", 2)});
  EXPECT_THAT(Read(TorchLegacy(root, {{"10", 2, "bb"}})),
              testing::AllOf(FailsWith(kDataLoss, reason::kSourceInvalid), Says("two ways")));
}

// A part of storage "10", of two floats.
std::string Part(const std::string& key, uint64_t first) {
  return pickles::Storage("Float", "10", 4,
                          {pickles::Tuple({Text(key), Int(static_cast<int64_t>(first)), Int(2)})});
}

TEST(TorchLegacy, WithTwoPartsByOneKeyIsRefused) {
  const std::vector<LegacyStorage> storages = {{"10", 4, std::string(16, 'a')}};
  EXPECT_OK(Read(TorchLegacy(pickles::List({Part("v", 0), Part("u", 2), Part("v", 0)}), storages)));
  EXPECT_THAT(Read(TorchLegacy(pickles::List({Part("v", 0), Part("v", 2)}), storages)),
              testing::AllOf(FailsWith(kDataLoss, reason::kSourceInvalid), Says("one key")));
  EXPECT_THAT(Read(TorchLegacy(pickles::List({Part("10", 0)}), storages)),
              testing::AllOf(FailsWith(kDataLoss, reason::kSourceInvalid), Says("one key")));
}

TEST(TorchLegacy, SkipsStoragesOfQuantisedTensors) {
  const std::string root = pickles::List(
      {pickles::Storage("QInt8", "1", 3), pickles::Storage("QInt32", "2", 1),
       pickles::Storage("Byte", "3", 2)});
  const std::string bytes = TorchLegacy(root, {{"1", 3, "qqq"}, {"2", 1, "QQQQ"}, {"3", 2, "bb"}});
  ASSERT_OK_AND_ASSIGN(const File file, Read(bytes));
  const StorageBytes& storage = file.storages.at("3");
  EXPECT_EQ(bytes.substr(storage.offset, storage.bytes), "bb");
  EXPECT_THAT(Read(TorchLegacy(pickles::List({pickles::Storage("Odd", "1", 1)}), {})),
              FailsWith(kUnimplemented, reason::kSourceUnsupported));
}

TEST(TorchLegacy, OfALongPickleIsReadPieceByPiece) {
  std::vector<std::string> many;
  for (int i = 0; i < 60'000; ++i) many.push_back(Int(i));
  const std::string root = Dict({{Text("many"), pickles::List(many)},
                                 {Text("a"), pickles::TensorV2(pickles::Storage("Float", "20", 3),
                                                               0, {3}, {1})}});
  const std::string bytes = TorchLegacy(root, {{"20", 3, std::string(12, 'a')}});
  ASSERT_GT(bytes.size(), 500'000u);
  ASSERT_OK_AND_ASSIGN(const File file, Read(bytes));
  EXPECT_EQ(file.document.root->Get("many")->items().size(), 60'000u);
}

TEST(TorchLegacy, SaysWhereItIsCut) {
  const std::string whole = TorchLegacy(kLegacyRoot, {{"10", 2, "bb"}, {"20", 3, "aaaabbbbcccc"}});
  for (size_t left = 30; left < whole.size(); left += 7) {
    const auto read = Read(whole.substr(0, left));
    EXPECT_THAT(read, FailsWith(kDataLoss, reason::kSourceInvalid)) << left;
    EXPECT_EQ(FactsOf(read.status())["file"], kPath);
  }
}

// ---- What is what.

std::string Tar() {
  std::string out = "storages";
  out.resize(257);
  return out + "ustar" + std::string(2000, '\0');
}

TEST(IsTorchFile, KnowsItsForms) {
  EXPECT_TRUE(IsRecognised(TorchZip(kRoot, {{"0", "12345678"}})));
  EXPECT_TRUE(IsRecognised(TorchLegacy(kLegacyRoot, {})));
  EXPECT_TRUE(IsRecognised(Tar()));
  EXPECT_TRUE(IsRecognised("L119547037146038801333356L\n.")) << "protocol 0";
  // data.pkl last, behind more than is looked at.
  const std::vector<ZipRecord> records = {{.name = "m/data/0", .bytes = std::string(100'000, 'x')},
                                          {.name = "m/data.pkl", .bytes = "p"}};
  EXPECT_TRUE(IsRecognised(WriteZip(records).bytes));
}

TEST(IsTorchFile, KnowsItsFormsWhereTheyAreDamaged) {
  const std::string whole = TorchZip(kRoot, {{"0", "12345678"}});
  EXPECT_TRUE(IsRecognised(whole.substr(0, 300))) << "cut";
  std::string zeroed = whole;
  zeroed.replace(0, 100, 100, '\0');
  EXPECT_FALSE(IsRecognised(zeroed)) << "torch looks at the begin of a file, too";
}

TEST(IsTorchFile, KnowsOthers) {
  for (const std::string& other :
       {std::string(), std::string("P"), std::string(600, '\0'), std::string("{\"a\": 1}"),
        WriteZip({{.name = "w.npy", .bytes = "x"}}).bytes, pickles::Pickle(Int(1))}) {
    EXPECT_FALSE(IsRecognised(other)) << other.substr(0, 20);
  }
}

TEST(ReadFile, NamesOtherForms) {
  EXPECT_THAT(Read(Tar()), testing::AllOf(FailsWith(kUnimplemented, reason::kSourceUnsupported),
                                          Says("tar")));
  EXPECT_THAT(Read(pickles::Pickle(Int(1))),
              testing::AllOf(FailsWith(kUnimplemented, reason::kSourceUnsupported),
                             Says("a pickle of something else")));
  EXPECT_THAT(Read(""), FailsWith(kDataLoss, reason::kSourceInvalid));
}

}  // namespace
}  // namespace ckptd::torch
