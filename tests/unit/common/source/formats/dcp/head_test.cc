#include "common/source/formats/dcp/head.h"

#include <gtest/gtest.h>

#include "tests/testing/torch_writer.h"

namespace ckptd::dcp {
namespace {

std::optional<Head> HeadOf(const std::string& bytes) {
  return ReadHead(std::as_bytes(std::span(bytes)));
}
std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::string kTensor = pickles::Pickle("pretend");

TEST(ReadHead, FindsThePickleAndTheStorage) {
  for (const bool wide : {false, true}) {
    std::vector<ZipRecord> records = TorchRecords(kTensor, {{"0", "elements"}});
    for (ZipRecord& record : records) record.wide = wide;
    const ZipFile file = WriteZip(records);
    const std::optional<Head> head = HeadOf(file.bytes);
    ASSERT_TRUE(head.has_value());
    EXPECT_EQ(TextOf(head->pickle), kTensor);
    EXPECT_EQ(head->data, file.data[2]);
    EXPECT_FALSE(head->big_endian);
  }
}

TEST(ReadHead, NeedsNothingBehindTheStoragesHeader) {
  const ZipFile file = WriteZip(TorchRecords(kTensor, {{"0", "elements"}}));
  EXPECT_TRUE(HeadOf(file.bytes.substr(0, file.data[2])).has_value());
  for (size_t bytes = 0; bytes < file.data[2]; ++bytes) {
    EXPECT_FALSE(HeadOf(file.bytes.substr(0, bytes)).has_value()) << bytes;
  }
}

TEST(ReadHead, KnowsTheByteOrderAndRecordsOfNewerVersions) {
  std::vector<ZipRecord> records = TorchRecords(kTensor, {{"0", "elements"}}, "big");
  records.insert(records.begin() + 1, {.name = "m/.format_version", .bytes = "1"});
  records.insert(records.begin() + 2, {.name = "m/.storage_alignment", .bytes = "64"});
  const auto head = HeadOf(WriteZip(records).bytes);
  ASSERT_TRUE(head.has_value());
  EXPECT_TRUE(head->big_endian);
}

TEST(ReadHead, SaysThatAnObjectHasNoStorage) {
  const auto head = HeadOf(TorchZip("N", {}));
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(TextOf(head->pickle), pickles::Pickle("N"));
  EXPECT_EQ(head->data, std::nullopt);
}

TEST(ReadHead, LeavesOtherFormsToAReaderOfZipFiles) {
  const auto reads = [](std::vector<ZipRecord> records) {
    return HeadOf(WriteZip(records).bytes).has_value();
  };
  const std::vector<ZipRecord> usual = TorchRecords(kTensor, {{"0", "elements"}});
  EXPECT_TRUE(reads(usual));
  // Another key, an order of its own, no byte order, another folder, TorchScript.
  EXPECT_FALSE(reads(TorchRecords(kTensor, {{"1", "elements"}})));
  EXPECT_FALSE(reads({usual[1], usual[0], usual[2]}));
  EXPECT_FALSE(reads({usual[0], usual[2], usual[1]}));
  std::vector<ZipRecord> records = usual;
  records[2].name = "n/data/0";
  EXPECT_FALSE(reads(records));
  records = usual;
  records[1].name = "m/constants.pkl";
  EXPECT_FALSE(reads(records));
  records = usual;
  records[2] = DeflatedRecord("m/data/0", "elements");
  EXPECT_FALSE(reads(records));
  records = usual;
  records[2].flags |= 1;
  EXPECT_FALSE(reads(records));
  EXPECT_FALSE(HeadOf("").has_value());
}

}  // namespace
}  // namespace ckptd::dcp
