#include "common/source/safetensors/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/source/safetensors/header_json.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

using Order = std::vector<size_t>;

Order IdentityOrder(size_t count) {
  Order order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

// Sorts by name; of several with one name the last one stated stays.
void SortByName(std::vector<HeaderTensor>& tensors, RepeatedKeys& repeated) {
  Order order = IdentityOrder(tensors.size());
  std::stable_sort(order.begin(), order.end(),
                   [&tensors](size_t a, size_t b) { return tensors[a].name < tensors[b].name; });
  std::vector<HeaderTensor> sorted;
  sorted.reserve(tensors.size());
  for (const size_t i : order) {
    if (!sorted.empty() && sorted.back().name == tensors[i].name) {
      repeated.Add(sorted.back().name);
      sorted.pop_back();
    }
    sorted.push_back(std::move(tensors[i]));
  }
  tensors = std::move(sorted);
}

// Checks one tensor that should start at `start`; returns where it ends.
absl::StatusOr<uint64_t> CheckTensor(const HeaderTensor& tensor, uint64_t start) {
  if (tensor.begin != start) {
    return HeaderError("InvalidOffset",
                       fmt::format("tensor {} starts at byte {} of the data, the one before it "
                                   "ends at byte {}",
                                   Quoted(tensor.name), tensor.begin, start),
                       tensor.name);
  }
  if (tensor.end < tensor.begin) {
    return HeaderError("InvalidOffset",
                       fmt::format("tensor {} ends at byte {} of the data, before its start at {}",
                                   Quoted(tensor.name), tensor.end, tensor.begin),
                       tensor.name);
  }
  CKPTD_ASSIGN_OR_RETURN(const uint64_t bytes,
                         TensorBytesOf(tensor.name, tensor.dtype, tensor.shape));
  if (bytes != tensor.end - tensor.begin) {
    return HeaderError(
        "TensorInvalidInfo",
        fmt::format("tensor {} needs {} bytes for its dtype {} and shape, its "
                    "offsets give it {}",
                    Quoted(tensor.name), bytes, NameOf(tensor.dtype), tensor.end - tensor.begin),
        tensor.name);
  }
  return tensor.end;
}

// Walks the tensors in data order; returns the bytes of data that they cover.
absl::StatusOr<uint64_t> CheckOffsets(const std::vector<HeaderTensor>& tensors) {
  Order order = IdentityOrder(tensors.size());
  std::sort(order.begin(), order.end(), [&tensors](size_t a, size_t b) {
    const HeaderTensor& left = tensors[a];
    const HeaderTensor& right = tensors[b];
    if (left.begin != right.begin) return left.begin < right.begin;
    if (left.end != right.end) return left.end < right.end;
    return a < b;
  });
  uint64_t covered = 0;
  for (const size_t i : order) {
    CKPTD_ASSIGN_OR_RETURN(covered, CheckTensor(tensors[i], covered));
  }
  return covered;
}

}  // namespace

absl::Status HeaderError(std::string_view error, std::string_view why, std::string_view tensor) {
  Facts facts = {{"error", std::string(error)}};
  if (!tensor.empty()) facts["tensor"] = std::string(tensor.substr(0, kMaxTensorNameBytes));
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("{}: {}; the file is damaged or not safetensors: copy or download "
                               "it again, or write it anew",
                               error, why),
                   facts);
}

absl::StatusOr<uint64_t> TensorBytesOf(std::string_view name, Dtype dtype, const Shape& shape) {
  uint64_t bits = 1;
  bool overflow = false;
  // From left to right, as the reference does it: a zero saves only from
  // overflows that come after it.
  for (const uint64_t extent : shape) {
    overflow = overflow || __builtin_mul_overflow(bits, extent, &bits);
  }
  overflow = overflow || __builtin_mul_overflow(bits, uint64_t{BitsOf(dtype)}, &bits);
  if (overflow) {
    return HeaderError(
        "ValidationOverflow",
        fmt::format("the shape of tensor {} is larger than any memory", Quoted(name)), name);
  }
  if (bits % 8 != 0) {
    return HeaderError("MisalignedSlice",
                       fmt::format("tensor {} of dtype {} does not end at a whole byte",
                                   Quoted(name), NameOf(dtype)),
                       name);
  }
  return bits / 8;
}

absl::StatusOr<uint64_t> ParseHeaderLength(std::span<const std::byte> start, uint64_t file_bytes) {
  if (file_bytes < kHeaderLengthBytes || start.size() < kHeaderLengthBytes) {
    return HeaderError(
        "HeaderTooSmall",
        fmt::format("it has {} bytes, not even the {} of a header's length",
                    std::min<uint64_t>(file_bytes, start.size()), kHeaderLengthBytes));
  }
  uint64_t length = 0;
  for (size_t i = kHeaderLengthBytes; i-- > 0;) {
    length = (length << 8) | std::to_integer<uint64_t>(start[i]);
  }
  constexpr std::string_view kLfsPointer = "version ";  // ... https://git-lfs.github.com/spec/v1
  if (file_bytes < 1024 && std::memcmp(start.data(), kLfsPointer.data(), kHeaderLengthBytes) == 0) {
    return HeaderError("HeaderTooLarge",
                       "it is a pointer of git-lfs, not the file itself; run `git lfs pull` in its "
                       "repository");
  }
  if (length > kMaxHeaderBytes) {
    return HeaderError("HeaderTooLarge",
                       fmt::format("it states a header of {} bytes, at most {} are allowed", length,
                                   kMaxHeaderBytes));
  }
  if (length > file_bytes - kHeaderLengthBytes) {
    return HeaderError("InvalidHeaderLength",
                       fmt::format("it states a header of {} bytes, but ends after {}", length,
                                   file_bytes - kHeaderLengthBytes));
  }
  return length;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json,
                                                         uint64_t file_bytes) {
  if (file_bytes < kHeaderLengthBytes || json.size() > file_bytes - kHeaderLengthBytes) {
    return HeaderError("InvalidHeaderLength", "it ends inside its header");
  }
  if (const size_t valid = ValidUtf8Prefix(json); valid != json.size()) {
    return HeaderError("InvalidHeader",
                       fmt::format("its header is not UTF-8 from byte {} on", valid));
  }
  SafetensorsHeader header;
  CKPTD_RETURN_IF_ERROR(ReadHeaderJson(json, header));
  SortByName(header.tensors, header.repeated_tensors);
  CKPTD_ASSIGN_OR_RETURN(const uint64_t covered, CheckOffsets(header.tensors));
  const uint64_t data_bytes = file_bytes - kHeaderLengthBytes - json.size();
  if (covered != data_bytes) {
    return HeaderError(
        "MetadataIncompleteBuffer",
        fmt::format("its tensors cover {} bytes of data, the file has {} ({})", covered, data_bytes,
                    covered > data_bytes ? "cut short" : "bytes after the last one"));
  }
  return header;
}

}  // namespace ckptd
