// Another storage, whose every call is watched: that of a caller who may have to say which file
// does not answer.
#ifndef CKPTD_COMMON_SOURCE_STORAGE_WATCHED_H_
#define CKPTD_COMMON_SOURCE_STORAGE_WATCHED_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/source/storage.h"
#include "common/source/storage_watch.h"

namespace ckptd {

// Contract and errors are those of the storage behind it. Its objects hold the watch.
class WatchedStorage final : public Storage {
 public:
  WatchedStorage(std::shared_ptr<const Storage> behind, std::shared_ptr<StorageWatch> watch)
      : behind_(std::move(behind)), watch_(std::move(watch)) {}

  absl::Status List(const std::string& folder,
                    absl::FunctionRef<bool(std::string_view name)> visit) const override;
  absl::StatusOr<Found> Stat(const std::string& path) const override;
  absl::StatusOr<std::shared_ptr<const ReadableObject>> Open(
      const std::string& path) const override;
  std::string_view WhatChanged(const SourceFile& was, const SourceFile& is) const override {
    return behind_->WhatChanged(was, is);
  }
  std::chrono::nanoseconds UnsettledFor(
      const SourceFile& object, std::chrono::system_clock::time_point now) const override {
    return behind_->UnsettledFor(object, now);
  }

 private:
  const std::shared_ptr<const Storage> behind_;
  const std::shared_ptr<StorageWatch> watch_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_STORAGE_WATCHED_H_
