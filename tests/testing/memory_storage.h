// A storage of objects that tests write by hand: no file system, no descriptor, nothing mapped.
#ifndef CKPTD_TESTS_TESTING_MEMORY_STORAGE_H_
#define CKPTD_TESTS_TESTING_MEMORY_STORAGE_H_

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/storage.h"

namespace ckptd {

class MemoryStorage final : public Storage {
 public:
  // Writing again makes another object of that name.
  void Write(const std::string& path, std::string bytes) {
    Object& object = objects_[path];
    object.identity = {.path = path, .bytes = bytes.size(), .object = std::to_string(++writes_)};
    object.bytes = std::make_shared<const std::string>(std::move(bytes));
  }
  const std::string& Bytes(const std::string& path) const { return *objects_.at(path).bytes; }

  absl::Status List(const std::string& folder,
                    absl::FunctionRef<bool(std::string_view name)> visit) const override {
    if (!IsFolder(folder)) return Missing(folder);
    std::set<std::string> names;
    for (const auto& [path, object] : objects_) {
      if (!path.starts_with(folder + "/")) continue;
      const std::string below = path.substr(folder.size() + 1);
      names.insert(below.substr(0, below.find('/')));
    }
    for (const std::string& name : names) {
      if (!visit(name)) break;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Found> Stat(const std::string& path) const override {
    const auto object = objects_.find(path);
    if (object != objects_.end()) return Found{object->second.identity, false};
    if (IsFolder(path)) return Found{{.path = path}, true};
    return Missing(path);
  }

  absl::StatusOr<std::shared_ptr<const ReadableObject>> Open(
      const std::string& path) const override {
    const auto object = objects_.find(path);
    if (object != objects_.end()) {
      return std::make_shared<const Opened>(object->second.identity, object->second.bytes);
    }
    if (!IsFolder(path)) return Missing(path);
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     "reading " + path + ": it is a folder", {{"file", path}});
  }

  std::string_view WhatChanged(const SourceFile& was, const SourceFile& is) const override {
    return IsSameObject(was, is) ? "" : "it was written anew";
  }
  std::chrono::nanoseconds UnsettledFor(const SourceFile&,
                                        std::chrono::system_clock::time_point) const override {
    return std::chrono::nanoseconds(0);
  }

 private:
  struct Object {
    SourceFile identity;
    std::shared_ptr<const std::string> bytes;
  };

  class Opened final : public ReadableObject {
   public:
    Opened(SourceFile identity, std::shared_ptr<const std::string> bytes)
        : ReadableObject(std::move(identity)), bytes_(std::move(bytes)) {}
    absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
      if (offset > bytes_->size() || out.size() > bytes_->size() - offset) {
        return MakeError(absl::StatusCode::kDataLoss, reason::kSourceChanged,
                         "reading " + path() + ": it ends before", {{"file", path()}});
      }
      if (!out.empty()) std::memcpy(out.data(), bytes_->data() + offset, out.size());
      return absl::OkStatus();
    }
    bool in_memory() const override { return true; }

   private:
    const std::shared_ptr<const std::string> bytes_;
  };

  bool IsFolder(const std::string& path) const {
    const auto below = objects_.lower_bound(path + "/");
    return below != objects_.end() && below->first.starts_with(path + "/");
  }
  static absl::Status Missing(const std::string& path) {
    return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                     "reading " + path + ": there is no such object", {{"file", path}});
  }

  std::map<std::string, Object> objects_;
  uint64_t writes_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_MEMORY_STORAGE_H_
