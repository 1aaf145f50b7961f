// The tests that every Storage and its objects must pass.
#ifndef CKPTD_TESTS_CONTRACT_STORAGE_STORAGE_CONTRACT_H_
#define CKPTD_TESTS_CONTRACT_STORAGE_STORAGE_CONTRACT_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/storage.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {

// A storage, and how to put objects there.
class StorageUnderTest {
 public:
  virtual ~StorageUnderTest() = default;
  virtual const Storage& storage() const = 0;
  // The path of an object that ends with these bytes.
  virtual std::string Write(const std::string& name, const std::string& bytes) = 0;
  // A folder in which Write puts them; empty: it has none.
  virtual std::string folder() const { return {}; }
  virtual std::string missing() const = 0;
};

struct StorageCase {
  std::string name;
  std::function<std::unique_ptr<StorageUnderTest>()> make;
};

class StorageContract : public testing::TestWithParam<StorageCase> {
 protected:
  using Object = std::shared_ptr<const ReadableObject>;

  static std::string RandomBytes(size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::string bytes(count, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    return bytes;
  }
  static std::string ReadAll(const ReadableObject& object, uint64_t offset, size_t count) {
    std::string text(count, '\0');
    EXPECT_OK(object.ReadAt(offset, std::as_writable_bytes(std::span(text))));
    return text;
  }

  const Storage& storage() const { return under_test_->storage(); }

  std::unique_ptr<StorageUnderTest> under_test_ = GetParam().make();
  const std::string bytes_ = RandomBytes(300'000, 1);
};

TEST_P(StorageContract, ReadsAnyRangeOfAnObject) {
  ASSERT_OK_AND_ASSIGN(const Object object, storage().Open(under_test_->Write("a", bytes_)));
  ASSERT_GE(object->size(), bytes_.size());
  const uint64_t begin = object->size() - bytes_.size();
  EXPECT_EQ(ReadAll(*object, begin, bytes_.size()), bytes_);
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    const size_t at = random() % bytes_.size();
    const size_t count = random() % (bytes_.size() - at);
    EXPECT_EQ(ReadAll(*object, begin + at, count), bytes_.substr(at, count));
  }
  EXPECT_EQ(ReadAll(*object, object->size(), 0), "");
}

TEST_P(StorageContract, RefusesToReadBehindTheEnd) {
  ASSERT_OK_AND_ASSIGN(const Object object, storage().Open(under_test_->Write("a", bytes_)));
  std::vector<std::byte> room(2);
  for (const uint64_t offset : {object->size() - 1, object->size(), object->size() + 4096}) {
    const absl::Status status = object->ReadAt(offset, room);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << offset;
    EXPECT_THAT(status, Says(object->path()));
  }
}

TEST_P(StorageContract, ReadsFromManyThreadsAtOnce) {
  ASSERT_OK_AND_ASSIGN(const Object object, storage().Open(under_test_->Write("a", bytes_)));
  const uint64_t begin = object->size() - bytes_.size();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t at = t * 1000; at + 1000 <= bytes_.size(); at += 4000) {
        EXPECT_EQ(ReadAll(*object, begin + at, 1000), bytes_.substr(at, 1000));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(StorageContract, SaysTheSameOfAnObjectHoweverItIsAsked) {
  const std::string path = under_test_->Write("a", bytes_);
  ASSERT_OK_AND_ASSIGN(const Object object, storage().Open(path));
  ASSERT_OK_AND_ASSIGN(const Storage::Found found, storage().Stat(path));
  EXPECT_FALSE(found.is_folder);
  EXPECT_EQ(found.identity, object->identity());
  EXPECT_EQ(object->path(), path);
  EXPECT_EQ(storage().WhatChanged(found.identity, object->identity()), "");
  EXPECT_OK(OpenIndexed(storage(), found.identity));
}

TEST_P(StorageContract, TellsTwoObjectsApart) {
  ASSERT_OK_AND_ASSIGN(const auto one, storage().Stat(under_test_->Write("a", bytes_)));
  ASSERT_OK_AND_ASSIGN(const Object other, storage().Open(under_test_->Write("b", bytes_)));
  EXPECT_NE(storage().WhatChanged(one.identity, other->identity()), "");
  SourceFile replaced = one.identity;
  replaced.path = other->path();
  EXPECT_THAT(OpenIndexed(storage(), replaced),
              FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
}

TEST_P(StorageContract, ObjectsHaveTheSameBytesByAllTheirAbilities) {
  ASSERT_OK_AND_ASSIGN(const Object object, storage().Open(under_test_->Write("a", bytes_)));
  const auto size = static_cast<size_t>(object->size());
  const std::string all = ReadAll(*object, 0, size);
  if (object->fd() >= 0) {
    std::string by_descriptor(size, '\0');
    EXPECT_EQ(::pread(object->fd(), by_descriptor.data(), size, 0), static_cast<ssize_t>(size));
    EXPECT_EQ(by_descriptor, all);
  }
  if (const Mapping mapping = object->Map(); mapping.valid()) {
    ASSERT_EQ(mapping.bytes(), size);
    EXPECT_EQ(std::memcmp(mapping.data(), all.data(), size), 0);
  }
  EXPECT_LE(object->begin(), object->data_begin().value_or(object->size()));
  EXPECT_LE(object->data_begin().value_or(0), object->size());
}

TEST_P(StorageContract, AnEmptyObjectIsOne) {
  ASSERT_OK_AND_ASSIGN(const Object object, storage().Open(under_test_->Write("a", "")));
  EXPECT_EQ(ReadAll(*object, object->size(), 0), "");
  EXPECT_FALSE(object->size() == 0 && object->Map().valid());
}

TEST_P(StorageContract, WhatIsMissingIsNotFound) {
  const std::string path = under_test_->missing();
  const auto not_found = FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound);
  EXPECT_THAT(storage().Open(path), not_found);
  EXPECT_THAT(storage().Stat(path), not_found);
  EXPECT_EQ(FactsOf(storage().Open(path).status()).at("file"), path);
  EXPECT_FALSE(storage().List(path, [](std::string_view) { return true; }).ok());
}

TEST_P(StorageContract, ListsWhatIsInAFolderUntilItIsEnough) {
  if (under_test_->folder().empty()) GTEST_SKIP() << "it has no folders";
  for (const char* name : {"b", "a", "c"}) under_test_->Write(name, "x");
  ASSERT_OK_AND_ASSIGN(const Storage::Found found, storage().Stat(under_test_->folder()));
  EXPECT_TRUE(found.is_folder);
  std::vector<std::string> names;
  ASSERT_OK(storage().List(under_test_->folder(), [&names](std::string_view name) {
    names.emplace_back(name);
    return true;
  }));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "c"}));
  int seen = 0;
  ASSERT_OK(storage().List(under_test_->folder(), [&seen](std::string_view) { return ++seen < 2; }));
  EXPECT_EQ(seen, 2);
  EXPECT_THAT(storage().Open(under_test_->folder()),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_STORAGE_STORAGE_CONTRACT_H_
