// A range of an object that is read as a file of its own.
#ifndef CKPTD_COMMON_SOURCE_ZIP_OBJECT_PART_H_
#define CKPTD_COMMON_SOURCE_ZIP_OBJECT_PART_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "common/source/storage.h"

namespace ckptd::zip {

// Offsets are from its begin. The range lies in the object. Thread-safe.
struct ObjectPart {
  std::shared_ptr<const ReadableObject> object;
  uint64_t begin = 0;
  uint64_t bytes = 0;

  // Reads exactly out.size() bytes. Errors: DataLoss SOURCE_INVALID past the end of the part; those
  // of ReadableObject::ReadAt, with fact "file".
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const;

  // The error for what is wrong with it: DataLoss SOURCE_INVALID with fact "file". `why` ends with
  // what to try.
  absl::Status Invalid(std::string_view why) const;
  // InvalidArgument SOURCE_INVALID: a limit is passed.
  absl::Status AboveLimit(std::string_view why) const;
  // Unimplemented SOURCE_UNSUPPORTED.
  absl::Status Unsupported(std::string_view why) const;
};

// A little-endian number at `at`, however it is aligned.
template <typename T>
T LittleAt(std::span<const std::byte> bytes, size_t at) {
  static_assert(std::endian::native == std::endian::little);
  T value = 0;
  std::memcpy(&value, bytes.subspan(at, sizeof(T)).data(), sizeof(T));
  return value;
}

}  // namespace ckptd::zip

#endif  // CKPTD_COMMON_SOURCE_ZIP_OBJECT_PART_H_
