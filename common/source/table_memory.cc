#include "common/source/table_memory.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/checked_math.h"
#include "common/base/posix.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// A reader takes a first piece of every file, which is mostly no header. What fits there is small.
constexpr uint64_t kUncounted = 64 * 1024;

AdmitTables& Admission() {
  static AdmitTables admit;
  return admit;
}

// Header bytes of one opening, which may be of many files.
class Counter {
 public:
  absl::Status Add(uint64_t bytes, const std::string& path) {
    if (bytes <= kUncounted) return absl::OkStatus();
    // Tables of what was read before may not be made yet.
    const uint64_t sum = bytes_.fetch_add(bytes) + bytes;
    const uint64_t tables = CheckedMultiply(sum, kTableBytesPerHeaderByte)
                                .value_or(std::numeric_limits<uint64_t>::max());
    const absl::Status admitted = Admission()(tables);
    if (admitted.ok()) return admitted;
    return WithFact(WithContext(admitted, "reading the header of " + path), "file", path);
  }

 private:
  std::atomic<uint64_t> bytes_ = 0;
};

class CountedObject final : public ReadableObject {
 public:
  CountedObject(std::shared_ptr<const ReadableObject> object, std::shared_ptr<Counter> counter)
      : ReadableObject(object->identity()), object_(std::move(object)), counter_(std::move(counter)) {}

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    CKPTD_RETURN_IF_ERROR(counter_->Add(out.size(), path()));
    return object_->ReadAt(offset, out);
  }
  uint64_t begin() const override { return object_->begin(); }
  std::optional<uint64_t> data_begin() const override { return object_->data_begin(); }
  int fd() const override { return object_->fd(); }
  Mapping Map() const override { return object_->Map(); }
  bool in_memory() const override { return object_->in_memory(); }

 private:
  const std::shared_ptr<const ReadableObject> object_;
  const std::shared_ptr<Counter> counter_;
};

class CountingStorage final : public Storage {
 public:
  explicit CountingStorage(std::shared_ptr<const Storage> storage) : storage_(std::move(storage)) {}

  absl::Status List(const std::string& folder,
                    absl::FunctionRef<bool(std::string_view name)> visit) const override {
    return storage_->List(folder, visit);
  }
  absl::StatusOr<Found> Stat(const std::string& path) const override { return storage_->Stat(path); }
  absl::StatusOr<std::shared_ptr<const ReadableObject>> Open(const std::string& path) const override {
    CKPTD_ASSIGN_OR_RETURN(auto object, storage_->Open(path));
    return std::make_shared<const CountedObject>(std::move(object), counter_);
  }
  std::string_view WhatChanged(const SourceFile& was, const SourceFile& is) const override {
    return storage_->WhatChanged(was, is);
  }
  std::chrono::nanoseconds UnsettledFor(const SourceFile& object,
                                        std::chrono::system_clock::time_point now) const override {
    return storage_->UnsettledFor(object, now);
  }

 private:
  const std::shared_ptr<const Storage> storage_;
  const std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
};

}  // namespace

void SetAdmitTables(AdmitTables admit) { Admission() = std::move(admit); }

std::shared_ptr<const Storage> CountTables(std::shared_ptr<const Storage> storage) {
  if (Admission() == nullptr) return storage;
  return std::make_shared<const CountingStorage>(std::move(storage));
}

}  // namespace ckptd
