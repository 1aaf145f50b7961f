// The header of a safetensors file: bytes in, tensors out. Pure: no I/O.
//
// A file is a little-endian u64 N, N bytes of JSON, then the data. Checks, their
// order and their names are those of the reference library, which also decides
// what is tolerated: white space around the object, unknown keys in an entry, a
// tensor stated twice (the last one counts). Stricter than it, on purpose: a
// tensor must be an object and its dtype a string (the reference also takes an
// array of the three values and {"F32": null}), and the limits below.
#ifndef CKPTD_COMMON_SOURCE_SAFETENSORS_HEADER_H_
#define CKPTD_COMMON_SOURCE_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/dtype.h"
#include "common/source/index.h"

namespace ckptd {

// Bytes of the length field in front of the JSON.
inline constexpr uint64_t kHeaderLengthBytes = 8;
// Of the format.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
// Nesting of the JSON, as the reference's parser has it.
inline constexpr uint32_t kMaxHeaderDepth = 127;
// Ours, far above any real file: the format itself states none.
inline constexpr size_t kMaxHeaderTensors = 1'000'000;
inline constexpr size_t kMaxTensorDims = 64;
inline constexpr size_t kMaxTensorNameBytes = 65'536;

// One tensor as its header states it, checked.
struct HeaderTensor {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t end = 0;    // one past the last byte; end - begin is what the shape needs
};

// Keys that a header states more than once. Other programs may take the first value, or refuse.
struct RepeatedKeys {
  static constexpr size_t kMostNames = 3;
  void Add(const std::string& key) {
    if (count++ < kMostNames) names.push_back(key);
  }
  uint64_t count = 0;
  std::vector<std::string> names;  // the first ones
};

struct SafetensorsHeader {
  std::vector<HeaderTensor> tensors;  // sorted by name, names unique
  std::map<std::string, std::string> metadata;
  RepeatedKeys repeated_tensors;
  RepeatedKeys repeated_metadata;
};

// The length N of the JSON. `start` holds the first bytes of the file, at least
// 8 when the file has them. On success 8 + N <= file_bytes.
absl::StatusOr<uint64_t> ParseHeaderLength(std::span<const std::byte> start, uint64_t file_bytes);

// Parses and checks the N bytes of JSON; `file_bytes` is the length of the whole
// file. On success the tensors cover the data exactly, without gap or overlap.
//
// Errors of both: DataLoss SOURCE_INVALID with facts "error" (HeaderTooSmall,
// InvalidOffset ...; LimitExceeded for a limit of ours) and, where one is to
// blame, "tensor". The caller adds the file.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json,
                                                         uint64_t file_bytes);

// Bytes of a tensor. Errors: ValidationOverflow, MisalignedSlice (a sub-byte
// dtype that does not fill its last byte), as above. `name` is for the sentence.
absl::StatusOr<uint64_t> TensorBytesOf(std::string_view name, Dtype dtype, const Shape& shape);

// An error as above.
absl::Status HeaderError(std::string_view error, std::string_view why,
                         std::string_view tensor = {});

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_SAFETENSORS_HEADER_H_
