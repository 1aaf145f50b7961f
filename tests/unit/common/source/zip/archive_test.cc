#include "common/source/zip/archive.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/zip_writer.h"

namespace ckptd::zip {
namespace {

constexpr char kPath[] = "/m.pt";

std::shared_ptr<const ReadableObject> ObjectOf(const std::string& bytes) {
  static MemoryStorage storage;
  storage.Write(kPath, bytes);
  return storage.Open(kPath).value();
}

absl::StatusOr<Archive> OpenBytes(const std::string& bytes) {
  return Archive::Open(ObjectOf(bytes));
}

const std::vector<ZipRecord> kRecords = {{.name = "m/data.pkl", .bytes = "a pickle"},
                                         {.name = "m/data/0", .bytes = std::string(100, 'x')},
                                         {.name = "m/data/1", .bytes = ""},
                                         {.name = "m/version", .bytes = "3\n"}};

// Every record of `archive` has the bytes of `records`, which lie where it says.
void ExpectRecords(const Archive& archive, const std::vector<ZipRecord>& records,
                   const std::string& bytes) {
  ASSERT_EQ(archive.records().size(), records.size());
  for (const ZipRecord& want : records) {
    const Record* const have = archive.Find(want.name);
    ASSERT_NE(have, nullptr) << want.name;
    EXPECT_EQ(bytes.substr(have->offset, have->bytes), want.bytes) << want.name;
    EXPECT_EQ(have->plain_bytes, want.plain.size()) << want.name;
    ASSERT_OK_AND_ASSIGN(const std::string plain, archive.Read(*have, 1 << 20));
    EXPECT_EQ(plain, want.plain) << want.name;
  }
}

TEST(Archive, ReadsRecordsAsTorchWritesThem) {
  const ZipFile file = WriteZip(kRecords);
  ASSERT_OK_AND_ASSIGN(const Archive archive, OpenBytes(file.bytes));
  ExpectRecords(archive, kRecords, file.bytes);
  EXPECT_EQ(archive.Find("m/data/1")->offset % 64, 0u);
  EXPECT_EQ(archive.Find("m/data/2"), nullptr);
}

TEST(Archive, ReadsRecordsAtAnyAlignmentAndWithoutDescriptors) {
  for (const size_t alignment : {1u, 8u, 4096u, 65536u / 2}) {
    for (const bool described : {true, false}) {
      std::vector<ZipRecord> records = kRecords;
      for (ZipRecord& record : records) record.flags = described ? uint16_t{0x0808} : uint16_t{0x0800};
      const ZipFile file = WriteZip(records, {.alignment = alignment, .wide_end = described});
      ASSERT_OK_AND_ASSIGN(const Archive archive, OpenBytes(file.bytes));
      ExpectRecords(archive, records, file.bytes);
    }
  }
}

TEST(Archive, ReadsNumbersOfZip64) {
  for (const uint16_t flags : {uint16_t{0x0808}, uint16_t{0x0800}}) {
    std::vector<ZipRecord> records = kRecords;
    for (ZipRecord& record : records) {
      record.wide = true;
      record.flags = flags;
    }
    const ZipFile file = WriteZip(records);
    ASSERT_OK_AND_ASSIGN(const Archive archive, OpenBytes(file.bytes));
    ExpectRecords(archive, records, file.bytes);
  }
}

TEST(Archive, ReadsAPartOfAnObject) {
  const ZipFile file = WriteZip(kRecords);
  const std::string bytes = "before" + file.bytes + "behind";
  ASSERT_OK_AND_ASSIGN(const Archive archive,
                       Archive::Open(ObjectOf(bytes), 6, file.bytes.size()));
  ExpectRecords(archive, kRecords, bytes);
  EXPECT_FALSE(Archive::Open(ObjectOf(bytes), 6, bytes.size()).ok());
  EXPECT_FALSE(Archive::Open(ObjectOf(bytes), bytes.size() + 1, 1).ok());
}

TEST(Archive, ReadsRecordsInTheOrderOfTheFile) {
  ZipFile file = WriteZip(kRecords, {.alignment = 1, .wide_end = false});
  // The directory names them the other way round.
  std::string entries;
  for (size_t i = kRecords.size(); i-- > 0;) {
    const size_t end = i + 1 < kRecords.size() ? file.entries[i + 1] : file.end;
    entries += file.bytes.substr(file.entries[i], end - file.entries[i]);
  }
  file.bytes.replace(file.directory, entries.size(), entries);
  ASSERT_OK_AND_ASSIGN(const Archive archive, OpenBytes(file.bytes));
  ExpectRecords(archive, kRecords, file.bytes);
  EXPECT_EQ(archive.records().front().name, "m/data.pkl");
}

TEST(Archive, FindsItsEndBehindAComment) {
  for (const size_t length : {1u, 1000u, 65535u}) {
    const ZipFile file = WriteZip(kRecords, {.comment = std::string(length, 'c')});
    EXPECT_OK(OpenBytes(file.bytes)) << length;
  }
}

TEST(Archive, InflatesWithinBounds) {
  std::string plain;
  for (int i = 0; i < 400'000; ++i) plain += std::to_string(i % 1000 * i);
  const std::vector<ZipRecord> records = {DeflatedRecord("m/data.pkl", plain),
                                          DeflatedRecord("m/empty", ""),
                                          DeflatedRecord("m/zeros", std::string(1 << 20, '\0'))};
  const ZipFile file = WriteZip(records);
  ASSERT_OK_AND_ASSIGN(const Archive archive, OpenBytes(file.bytes));
  for (const ZipRecord& record : records) {
    ASSERT_OK_AND_ASSIGN(const std::string read, archive.Read(*archive.Find(record.name), 1 << 24));
    EXPECT_TRUE(read == record.plain) << record.name;
  }
  EXPECT_THAT(archive.Read(*archive.Find("m/zeros"), (1 << 20) - 1),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
}

TEST(Archive, InflatesNothingThatGrowsTwoHundredfold) {
  const ZipFile file = WriteZip({DeflatedRecord("m/data.pkl", std::string(17 << 20, '\0'))});
  ASSERT_OK_AND_ASSIGN(const Archive archive, OpenBytes(file.bytes));
  EXPECT_THAT(archive.Read(archive.records().front(), 1 << 30),
              ::testing::AllOf(FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid),
                    Says("would grow from")));
}

TEST(Archive, RefusesDeflatedRecordsThatLie) {
  const std::string plain(5000, 'p');
  const std::string packed = Deflated(plain);
  const auto read = [&](std::string bytes, size_t says) {
    ZipRecord record = DeflatedRecord("m/data.pkl", plain);
    record.bytes = std::move(bytes);
    record.plain.resize(says);
    const ZipFile file = WriteZip({record});
    const auto archive = OpenBytes(file.bytes);
    EXPECT_OK(archive);
    return archive->Read(archive->records().front(), 1 << 24).status();
  };
  EXPECT_OK(read(packed, 5000));
  for (const size_t says : {4999u, 5001u, 0u, 1u << 23}) {
    EXPECT_THAT(read(packed, says), FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid))
        << says;
  }
  EXPECT_FALSE(read(packed.substr(0, packed.size() - 1), 5000).ok());
  EXPECT_FALSE(read(packed + "x", 5000).ok());
  EXPECT_FALSE(read(std::string(packed.size(), '\xff'), 5000).ok());
}

TEST(Archive, ChecksTheChecksumWhereOneIsStated) {
  ZipFile file = WriteZip(kRecords);
  file.bytes[file.data[0]] ^= 1;
  ASSERT_OK_AND_ASSIGN(const Archive archive, OpenBytes(file.bytes));
  EXPECT_THAT(archive.Read(*archive.Find("m/data.pkl"), 100),
              FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  std::vector<ZipRecord> unchecked = kRecords;
  unchecked[0].crc = 0;
  file = WriteZip(unchecked);
  file.bytes[file.data[0]] ^= 1;
  ASSERT_OK_AND_ASSIGN(const Archive other, OpenBytes(file.bytes));
  EXPECT_OK(other.Read(*other.Find("m/data.pkl"), 100));
}

struct Spoiled {
  const char* name;
  std::function<void(ZipFile&)> spoil;
  const char* says;
  absl::StatusCode code = absl::StatusCode::kDataLoss;
};

void Set(ZipFile& file, size_t at, uint64_t value, int bytes) {
  std::string number;
  Put(number, value, bytes);
  file.bytes.replace(at, number.size(), number);
}

class SpoiledArchive : public testing::TestWithParam<Spoiled> {};

TEST_P(SpoiledArchive, IsRefusedInOneSentence) {
  ZipFile file = WriteZip(kRecords);
  ASSERT_OK(OpenBytes(file.bytes));
  GetParam().spoil(file);
  const auto opened = OpenBytes(file.bytes);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), GetParam().code) << opened.status();
  EXPECT_THAT(opened, Says(GetParam().says));
  EXPECT_EQ(FactsOf(opened.status())["file"], kPath);
}

// Offsets are those of the format: a local header, an entry of the directory, and the end records.
INSTANTIATE_TEST_SUITE_P(
    All, SpoiledArchive,
    testing::Values(
        Spoiled{"Empty", [](ZipFile& f) { f.bytes.clear(); }, "cut short"},
        Spoiled{"CutByOne", [](ZipFile& f) { f.bytes.pop_back(); }, "cut short"},
        Spoiled{"CutInTheMiddle", [](ZipFile& f) { f.bytes.resize(150); }, "cut short"},
        Spoiled{"MoreBehindTheEnd", [](ZipFile& f) { f.bytes += "x"; }, "behind the end"},
        Spoiled{"DirectoryElsewhere", [](ZipFile& f) { Set(f, f.wide_end + 48, 3, 8); },
                "disagree"},
        Spoiled{"BothEndsElsewhere",
                [](ZipFile& f) {
                  Set(f, f.wide_end + 48, 3, 8);
                  Set(f, f.end + 16, 3, 4);
                },
                "does not lie where"},
        Spoiled{"DirectoryThatWraps",
                [](ZipFile& f) {
                  Set(f, f.wide_end + 48, UINT64_MAX - 10, 8);
                  Set(f, f.end + 16, 0xffffffff, 4);
                },
                "does not lie where"},
        Spoiled{"WideEndElsewhere", [](ZipFile& f) { Set(f, f.end - 12, 0, 8); }, "disagree"},
        Spoiled{"WideEndBehindTheFile", [](ZipFile& f) { Set(f, f.end - 12, UINT64_MAX, 8); },
                "disagree"},
        Spoiled{"CountsThatDiffer", [](ZipFile& f) { Set(f, f.end + 10, 3, 2); }, "disagree"},
        Spoiled{"MoreRecordsThanRoom",
                [](ZipFile& f) {
                  Set(f, f.wide_end + 24, 4'000'000, 8);
                  Set(f, f.wide_end + 32, 4'000'000, 8);
                  Set(f, f.end + 8, 0xffff, 2);
                  Set(f, f.end + 10, 0xffff, 2);
                },
                "too short"},
        Spoiled{"TooManyRecords",
                [](ZipFile& f) {
                  Set(f, f.wide_end + 24, 5'000'001, 8);
                  Set(f, f.wide_end + 32, 5'000'001, 8);
                  Set(f, f.end + 8, 0xffff, 2);
                  Set(f, f.end + 10, 0xffff, 2);
                },
                "more records", absl::StatusCode::kInvalidArgument},
        Spoiled{"FewerRecordsThanThere",
                [](ZipFile& f) {
                  Set(f, f.wide_end + 24, 3, 8);
                  Set(f, f.wide_end + 32, 3, 8);
                  Set(f, f.end + 8, 3, 2);
                  Set(f, f.end + 10, 3, 2);
                },
                "more records than it says"},
        Spoiled{"NoEntry", [](ZipFile& f) { f.bytes[f.entries[1]] = 'X'; }, "damaged"},
        Spoiled{"EntryOfALongName", [](ZipFile& f) { Set(f, f.entries[3] + 28, 60'000, 2); },
                "damaged"},
        Spoiled{"Zip64WithoutItsNumber",
                [](ZipFile& f) { Set(f, f.entries[1] + 42, 0xffffffff, 4); }, "damaged"},
        Spoiled{"Encrypted", [](ZipFile& f) { f.bytes[f.entries[1] + 8] |= 1; }, "encrypted",
                absl::StatusCode::kUnimplemented},
        Spoiled{"OtherMethod", [](ZipFile& f) { Set(f, f.entries[1] + 10, 14, 2); }, "method 14",
                absl::StatusCode::kUnimplemented},
        Spoiled{"TwoSizes", [](ZipFile& f) { Set(f, f.entries[1] + 24, 101, 4); }, "two sizes"},
        Spoiled{"TwoRecordsOfOneName",
                [](ZipFile& f) {
                  f.bytes.replace(f.entries[2] + 46, 8, "m/data/0");
                  f.bytes.replace(f.headers[2] + 30, 8, "m/data/0");
                },
                "two records"},
        Spoiled{"AnotherNameThere", [](ZipFile& f) { f.bytes[f.headers[1] + 30] = 'n'; },
                "its name"},
        Spoiled{"NoHeaderThere", [](ZipFile& f) { Set(f, f.entries[3] + 42, f.headers[3] + 1, 4); },
                "there is no record"},
        Spoiled{"HeaderBehindTheFile",
                [](ZipFile& f) { Set(f, f.entries[1] + 42, 0x7fffffff, 4); }, "ends before"},
        Spoiled{"TwoEntriesOfOneRecord",
                [](ZipFile& f) { Set(f, f.entries[2] + 42, f.headers[1], 4); }, "overlaps"},
        Spoiled{"AnotherMethodThere", [](ZipFile& f) { Set(f, f.headers[1] + 8, 8, 2); },
                "how it is packed"},
        Spoiled{"AnotherSizeThere", [](ZipFile& f) { Set(f, f.headers[1] + 18, 99, 4); },
                "its size"},
        Spoiled{"DataOverTheNextRecord",
                [](ZipFile& f) {
                  Set(f, f.entries[1] + 20, 300, 4);
                  Set(f, f.entries[1] + 24, 300, 4);
                },
                "overlaps"},
        Spoiled{"DataOverTheDirectory",
                [](ZipFile& f) {
                  Set(f, f.entries[3] + 20, 300, 4);
                  Set(f, f.entries[3] + 24, 300, 4);
                },
                "overlaps"},
        Spoiled{"HeaderOverTheNextRecord", [](ZipFile& f) { Set(f, f.headers[0] + 28, 9000, 2); },
                "overlaps"}),
    [](const auto& one) { return one.param.name; });

// Counts the reads, and what they fetch.
class CountingObject final : public ReadableObject {
 public:
  explicit CountingObject(std::string bytes)
      : ReadableObject({.path = kPath, .bytes = bytes.size()}), bytes_(std::move(bytes)) {}
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    ++reads;
    fetched += out.size();
    std::copy_n(reinterpret_cast<const std::byte*>(bytes_.data()) + offset, out.size(),
                out.begin());
    return absl::OkStatus();
  }

  mutable size_t reads = 0;
  mutable size_t fetched = 0;

 private:
  const std::string bytes_;
};

TEST(Archive, ReadsNeighbouringHeadersAtOnce) {
  std::vector<ZipRecord> records;
  for (int i = 0; i < 10'000; ++i) {
    records.push_back({.name = "m/data/" + std::to_string(i), .bytes = "data"});
  }
  const auto object = std::make_shared<const CountingObject>(WriteZip(records).bytes);
  ASSERT_OK_AND_ASSIGN(const Archive archive, Archive::Open(object));
  EXPECT_EQ(archive.records().size(), records.size());
  EXPECT_LT(object->reads, 20u);
  EXPECT_LT(object->fetched, 2 * object->size());
}

TEST(Archive, LeavesLongDataAlone) {
  std::vector<ZipRecord> records;
  for (int i = 0; i < 10; ++i) {
    records.push_back({.name = "m/data/" + std::to_string(i), .bytes = std::string(1 << 20, 'x')});
  }
  const auto object = std::make_shared<const CountingObject>(WriteZip(records).bytes);
  ASSERT_OK(Archive::Open(object));
  EXPECT_LT(object->fetched, 100'000u);
}

// A byte here or there: an error of ours, or records that lie in the file.
TEST(Archive, TakesAnyBytes) {
  const ZipFile whole = WriteZip(kRecords, {.alignment = 1});
  for (size_t at = 0; at < whole.bytes.size(); ++at) {
    for (const int bit : {0, 7}) {
      std::string bytes = whole.bytes;
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << bit);
      const auto archive = OpenBytes(bytes);
      if (!archive.ok()) {
        EXPECT_NE(ReasonOf(archive.status()), reason::kSourceChanged) << archive.status();
        EXPECT_EQ(FactsOf(archive.status()).count("file"), 1u) << archive.status();
        continue;
      }
      for (const Record& record : archive->records()) {
        EXPECT_LE(record.offset + record.bytes, bytes.size());
      }
    }
  }
}

}  // namespace
}  // namespace ckptd::zip
