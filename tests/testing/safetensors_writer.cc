#include "tests/testing/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "common/base/json.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/source/safetensors/header.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

constexpr size_t kWriteBytes = size_t{4} << 20;

absl::Status Invalid(const std::string& why, const std::string& tensor = {}) {
  Facts facts;
  if (!tensor.empty()) facts["tensor"] = tensor;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   "laying out a safetensors file: " + why, facts);
}

// As the reference escapes it; the caller has checked that it is UTF-8.
std::string Text(std::string_view text) { return JsonString(text, JsonCharacters::kUtf8); }

absl::Status CheckNames(const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) {
    const std::string& name = tensor.name;
    if (ValidUtf8Prefix(name) != name.size()) return Invalid("a tensor's name is not UTF-8");
    if (name == "__metadata__") return Invalid("a tensor cannot be named __metadata__", name);
    if (tensor.dtype == Dtype::kUnspecified) {
      return Invalid(fmt::format("tensor {} has no dtype", Quoted(name)), name);
    }
    names.push_back(name);
  }
  for (const auto& entry : metadata) {
    if (ValidUtf8Prefix(entry.first) != entry.first.size() ||
        ValidUtf8Prefix(entry.second) != entry.second.size()) {
      return Invalid("an entry of the metadata is not UTF-8");
    }
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return Invalid(fmt::format("two tensors are named {}", Quoted(*twice)), std::string(*twice));
}

std::string MetadataJson(const std::map<std::string, std::string>& metadata) {
  std::string out = "\"__metadata__\":{";
  for (const auto& entry : metadata) {
    if (out.back() != '{') out.push_back(',');
    out += Text(entry.first) + ":" + Text(entry.second);
  }
  return out + "}";
}

std::string EntryJson(const TensorToWrite& tensor, uint64_t begin, uint64_t end) {
  return fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                     Text(tensor.name), NameOf(tensor.dtype), fmt::join(tensor.shape, ","),
                     begin, end);
}

std::vector<size_t> DataOrder(const std::vector<TensorToWrite>& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&tensors](size_t a, size_t b) {
    if (tensors[a].dtype != tensors[b].dtype) return tensors[a].dtype > tensors[b].dtype;
    return tensors[a].name < tensors[b].name;
  });
  return order;
}

// Length, JSON, and the spaces that let the data start at a multiple of 8.
std::string WithLengthAndPadding(std::string json) {
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string start;
  for (uint64_t rest = json.size(), i = 0; i < kHeaderLengthBytes; ++i, rest >>= 8) {
    start.push_back(static_cast<char>(rest & 0xff));
  }
  return start + json;
}

std::string TemporaryName(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  return fmt::format("{}.{}.tmp-{}-{}", path.substr(0, name), path.substr(name), ::getpid(),
                     counter++);
}

absl::Status WriteFull(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return WithFact(ErrnoStatus(errno, "writing " + path), "file", path);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status WriteContents(int fd, const std::string& path, const SafetensorsLayout& layout,
                           const TensorBytesSource& source) {
  CKPTD_RETURN_IF_ERROR(WriteFull(fd, std::as_bytes(std::span(layout.start)), path));
  std::vector<std::byte> buffer;
  for (const size_t tensor : layout.order) {
    const uint64_t bytes = layout.bytes[tensor];
    for (uint64_t offset = 0; offset < bytes; offset += buffer.size()) {
      buffer.resize(static_cast<size_t>(std::min<uint64_t>(kWriteBytes, bytes - offset)));
      CKPTD_RETURN_IF_ERROR(source(tensor, offset, buffer));
      CKPTD_RETURN_IF_ERROR(WriteFull(fd, buffer, path));
    }
  }
  if (::fsync(fd) != 0) return WithFact(ErrnoStatus(errno, "writing " + path), "file", path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsLayout> LayoutSafetensors(
    const std::vector<TensorToWrite>& tensors, const std::map<std::string, std::string>& metadata) {
  CKPTD_RETURN_IF_ERROR(CheckNames(tensors, metadata));
  SafetensorsLayout out;
  out.order = DataOrder(tensors);
  out.bytes.resize(tensors.size());
  std::string json = "{";
  if (!metadata.empty()) json += MetadataJson(metadata);
  uint64_t begin = 0;
  for (const size_t i : out.order) {
    const TensorToWrite& tensor = tensors[i];
    const absl::StatusOr<uint64_t> bytes = TensorBytesOf(tensor.name, tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return Invalid(fmt::format("tensor {} of dtype {}: {}", Quoted(tensor.name),
                                 NameOf(tensor.dtype), FactsOf(bytes.status())["error"]),
                     tensor.name);
    }
    out.bytes[i] = *bytes;
    uint64_t end = 0;
    if (__builtin_add_overflow(begin, *bytes, &end)) {
      return Invalid("all tensors together are larger than any file", tensor.name);
    }
    if (json.size() > 1) json.push_back(',');
    json += EntryJson(tensor, begin, end);
    begin = end;
  }
  json.push_back('}');
  out.start = WithLengthAndPadding(std::move(json));
  if (out.start.size() - kHeaderLengthBytes > kMaxHeaderBytes) {
    return Invalid(
        fmt::format("HeaderTooLarge: {} bytes, at most {} are allowed; write several files",
                    out.start.size() - kHeaderLengthBytes, kMaxHeaderBytes));
  }
  return out;
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const TensorBytesSource& source) {
  CKPTD_ASSIGN_OR_RETURN(const SafetensorsLayout layout, LayoutSafetensors(tensors, metadata));
  const std::string temporary = TemporaryName(path);
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return WithFact(ErrnoStatus(errno, "creating " + path), "file", path);
  absl::Status status = WriteContents(fd.get(), path, layout, source);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = WithFact(ErrnoStatus(errno, "renaming the finished file to " + path), "file", path);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const std::vector<std::span<const std::byte>>& data) {
  CKPTD_ASSIGN_OR_RETURN(const SafetensorsLayout layout, LayoutSafetensors(tensors, metadata));
  if (data.size() != tensors.size()) return Invalid("not one piece of data for each tensor");
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i].size() == layout.bytes[i]) continue;
    return Invalid(fmt::format("tensor {} needs {} bytes, {} were given", Quoted(tensors[i].name),
                               layout.bytes[i], data[i].size()),
                   tensors[i].name);
  }
  return WriteSafetensors(path, tensors, metadata,
                          [&data](size_t tensor, uint64_t offset, std::span<std::byte> out) {
                            std::memcpy(out.data(), data[tensor].data() + offset, out.size());
                            return absl::OkStatus();
                          });
}

}  // namespace ckptd
