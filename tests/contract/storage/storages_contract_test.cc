// The contract on files, also as they are read for others, on memory of processes, and on the
// storage that tests of formats use.
#include <sys/stat.h>

#include "common/source/storage/access_storage.h"
#include "common/source/storage/posix.h"
#include "common/source/storage/process_memory.h"
#include "common/source/storage/watched.h"
#include "tests/contract/storage/storage_contract.h"
#include "tests/testing/as_guest.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/offered_memory.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

class Files final : public StorageUnderTest {
 public:
  const Storage& storage() const override { return storage_; }
  std::string Write(const std::string& name, const std::string& bytes) override {
    return folder_.Write(name, bytes);
  }
  std::string folder() const override { return folder_.path(); }
  std::string missing() const override { return folder_ / "none"; }

 private:
  PosixStorage storage_;
  TempFolder folder_;
};

class Watched final : public StorageUnderTest {
 public:
  const Storage& storage() const override { return storage_; }
  std::string Write(const std::string& name, const std::string& bytes) override {
    return folder_.Write(name, bytes);
  }
  std::string folder() const override { return folder_.path(); }
  std::string missing() const override { return folder_ / "none"; }

 private:
  const WatchedStorage storage_{std::make_shared<const PosixStorage>(),
                                std::make_shared<StorageWatch>("/", "/")};
  TempFolder folder_;
};

// Each object is this process's own memory.
class Processes final : public StorageUnderTest {
 public:
  const Storage& storage() const override { return storage_; }
  std::string Write(const std::string&, const std::string& bytes) override {
    memory_.push_back(std::make_unique<std::string>(bytes));
    std::vector<std::pair<const void*, uint64_t>> ranges;
    // Two ranges, so that reads cross from one to the other.
    const size_t half = bytes.size() / 2;
    if (half > 0) ranges.emplace_back(memory_.back()->data(), half);
    if (!bytes.empty()) ranges.emplace_back(memory_.back()->data() + half, bytes.size() - half);
    offers_.push_back(std::make_unique<OfferedMemory>("{}", ranges));
    return offers_.back()->path();
  }
  std::string missing() const override { return "/proc/self/fd/none"; }

 private:
  ProcessMemoryStorage storage_;
  std::vector<std::unique_ptr<std::string>> memory_;
  std::vector<std::unique_ptr<OfferedMemory>> offers_;
};

class InMemory final : public StorageUnderTest {
 public:
  const Storage& storage() const override { return storage_; }
  std::string Write(const std::string& name, const std::string& bytes) override {
    storage_.Write("/m/" + name, bytes);
    return "/m/" + name;
  }
  std::string folder() const override { return "/m"; }
  std::string missing() const override { return "/none"; }

 private:
  MemoryStorage storage_;
};

// Files by their paths, in an allowed root or on behalf of a guest.
class Judged final : public StorageUnderTest {
 public:
  explicit Judged(std::optional<Caller> guest)
      : storage_(AccessOf(std::move(guest), {folder_.path()})) {
    ::chmod(folder_.path().c_str(), 0755);
  }
  const Storage& storage() const override { return storage_; }
  std::string Write(const std::string& name, const std::string& bytes) override {
    return folder_.Write(name, bytes);
  }
  std::string folder() const override { return folder_.path(); }
  std::string missing() const override { return folder_ / "none"; }

 private:
  const TempFolder folder_;
  const AccessStorage storage_;
};

// Each object is a file that a client has passed under a path of its own.
class Passed final : public StorageUnderTest {
 public:
  const Storage& storage() const override { return storage_; }
  std::string Write(const std::string& name, const std::string& bytes) override {
    const std::string path = folder() + "/" + name;
    files_[path] = OpenToPass(folder_.Write(name, bytes));
    pass_ = rules_->passed.Add({}, files_);
    return path;
  }
  std::string folder() const override { return "/of/the/client"; }
  std::string missing() const override { return "/of/the/client/none"; }

 private:
  const TempFolder folder_;
  const std::shared_ptr<SourceRules> rules_ = std::make_shared<SourceRules>();
  PassedFiles::Files files_;
  std::shared_ptr<const void> pass_;
  const AccessStorage storage_{SourceAccess{rules_}};
};

INSTANTIATE_TEST_SUITE_P(
    All, StorageContract,
    testing::Values(StorageCase{"Posix", [] { return std::make_unique<Files>(); }},
                    StorageCase{"InRoots", [] { return std::make_unique<Judged>(std::nullopt); }},
                    StorageCase{"ForAGuest", [] { return std::make_unique<Judged>(SomeGuest()); }},
                    StorageCase{"Passed", [] { return std::make_unique<Passed>(); }},
                    StorageCase{"Watched", [] { return std::make_unique<Watched>(); }},
                    StorageCase{"ProcessMemory", [] { return std::make_unique<Processes>(); }},
                    StorageCase{"OfTests", [] { return std::make_unique<InMemory>(); }}),
    [](const auto& one) { return one.param.name; });

TEST(PosixStorage, OpensNoPipeAndNoDevice) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const PosixStorage storage;
  EXPECT_THAT(storage.Open(folder / "pipe"), Says("a pipe (FIFO)"));
  EXPECT_THAT(storage.Open("/dev/zero"), Says("a device"));
}

}  // namespace
}  // namespace ckptd
