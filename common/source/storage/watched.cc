#include "common/source/storage/watched.h"

#include "common/base/status.h"

namespace ckptd {
namespace {

class WatchedObject final : public ReadableObject {
 public:
  WatchedObject(std::shared_ptr<const ReadableObject> behind, std::shared_ptr<StorageWatch> watch)
      : ReadableObject(behind->identity()), behind_(std::move(behind)), watch_(std::move(watch)) {}
  ~WatchedObject() override {
    const StorageWatch::Call closing(watch_.get(), path());
    behind_.reset();
  }

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const StorageWatch::Call call(watch_.get(), path(), offset);
    return behind_->ReadAt(offset, out);
  }
  uint64_t begin() const override { return behind_->begin(); }
  std::optional<uint64_t> data_begin() const override { return behind_->data_begin(); }
  int fd() const override { return behind_->fd(); }
  Mapping Map() const override {
    const StorageWatch::Call call(watch_.get(), path());
    return behind_->Map();
  }
  bool in_memory() const override {
    const StorageWatch::Call call(watch_.get(), path());
    return behind_->in_memory();
  }

 private:
  std::shared_ptr<const ReadableObject> behind_;
  const std::shared_ptr<StorageWatch> watch_;
};

}  // namespace

absl::Status WatchedStorage::List(const std::string& folder,
                                  absl::FunctionRef<bool(std::string_view name)> visit) const {
  const StorageWatch::Call call(watch_.get(), folder);
  return behind_->List(folder, visit);
}

absl::StatusOr<Storage::Found> WatchedStorage::Stat(const std::string& path) const {
  const StorageWatch::Call call(watch_.get(), path);
  return behind_->Stat(path);
}

absl::StatusOr<std::shared_ptr<const ReadableObject>> WatchedStorage::Open(
    const std::string& path) const {
  const StorageWatch::Call call(watch_.get(), path);
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<const ReadableObject> object, behind_->Open(path));
  return std::make_shared<const WatchedObject>(std::move(object), watch_);
}

}  // namespace ckptd
