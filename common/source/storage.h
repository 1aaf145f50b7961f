// The seam for storage: where the objects of a source lie. Formats and transfers read through it;
// they ask an object what it can do, never what it is.
#ifndef CKPTD_COMMON_SOURCE_STORAGE_H_
#define CKPTD_COMMON_SOURCE_STORAGE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "common/source/index.h"

namespace ckptd {

// An object of a source, open: what it is named by may lead to another one meanwhile. Immutable;
// thread-safe.
class ReadableObject {
 public:
  virtual ~ReadableObject() = default;

  // Which object it is: its path as it was opened, its bytes, its identity. The header hash is
  // left to whoever reads one.
  const SourceFile& identity() const { return identity_; }
  const std::string& path() const { return identity_.path; }
  uint64_t size() const { return identity_.bytes; }

  // Reads exactly out.size() bytes at `offset`. Blocking. Errors, with the path: DataLoss
  // SOURCE_CHANGED where the object ends before, or is gone; those of the storage.
  virtual absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const = 0;

  // Where a format's own bytes begin: in front of them there may be some of the storage.
  virtual uint64_t begin() const { return 0; }
  // Where a format must have its tensors begin, if the storage knows.
  virtual std::optional<uint64_t> data_begin() const { return std::nullopt; }

  // What it can do beside ReadAt.
  //
  // A descriptor with the same bytes at the same offsets, which lives as long as the object: the
  // kernel may be asked about its cache, to read ahead, and to read past it. -1: none.
  virtual int fd() const { return -1; }
  // All of it, mapped to be read; later it may be cut, and reading then raises SIGBUS. Not valid
  // where it cannot be mapped.
  virtual Mapping Map() const { return {}; }
  // Whether its bytes are in memory, so that reading waits for nothing.
  virtual bool in_memory() const { return false; }

 protected:
  explicit ReadableObject(SourceFile identity) : identity_(std::move(identity)) {}

 private:
  const SourceFile identity_;
};

// Thread-safe. Paths are absolute.
class Storage {
 public:
  virtual ~Storage() = default;

  // Calls visit(name) for each entry of a folder, in no order, until it says false. Blocking.
  // Errors: PermissionDenied or Unavailable SOURCE_UNREADABLE, NotFound SOURCE_NOT_FOUND.
  virtual absl::Status List(const std::string& folder,
                            absl::FunctionRef<bool(std::string_view name)> visit) const = 0;

  struct Found {
    SourceFile identity;  // as ReadableObject::identity
    bool is_folder = false;
  };
  // What a path leads to now, without opening it. Blocking. Errors: NotFound SOURCE_NOT_FOUND
  // (also for a link to nothing, naming where it leads), PermissionDenied or Unavailable
  // SOURCE_UNREADABLE, InvalidArgument SOURCE_INVALID for a path that can be none. Fact "file".
  virtual absl::StatusOr<Found> Stat(const std::string& path) const = 0;

  // Blocking, but never on a pipe or a device: nothing but an object is opened. Errors: Stat's;
  // InvalidArgument SOURCE_INVALID for what is no object, saying what it is. Fact "file".
  virtual absl::StatusOr<std::shared_ptr<const ReadableObject>> Open(
      const std::string& path) const = 0;

  // What has become of an object between two looks at it, for people ("it was written to"); empty:
  // it is the same. Pure.
  virtual std::string_view WhatChanged(const SourceFile& was, const SourceFile& is) const = 0;
  // For how long from `now` a write might leave its identity as it is. Pure.
  virtual std::chrono::nanoseconds UnsettledFor(
      const SourceFile& object, std::chrono::system_clock::time_point now) const = 0;
};

// Opens an object that an index has. Errors: Open's; Aborted SOURCE_CHANGED where its path leads to
// something that is no object any more, to another object, or to a shorter one.
absl::StatusOr<std::shared_ptr<const ReadableObject>> OpenIndexed(const Storage& storage,
                                                                  const SourceFile& indexed);

// All of an object as text. Errors: Open's; InvalidArgument SOURCE_INVALID for one that is longer
// than `limit` bytes, unread.
struct TextObject {
  SourceFile identity;  // its header hash is of all bytes
  std::string text;
};
absl::StatusOr<TextObject> ReadText(const Storage& storage, const std::string& path, size_t limit);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_STORAGE_H_
