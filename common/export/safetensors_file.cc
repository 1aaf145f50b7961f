#include "common/export/safetensors_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/export/output_file.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kAlignment = 8;

std::string Json(std::string_view text) { return JsonString(text, JsonCharacters::kUtf8); }

std::string LittleEndian(uint64_t number) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(number >> (8 * i) & 0xff);
  return out;
}

absl::Status Unsupported(const OutTensor& tensor, std::string_view why) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kTargetInvalid,
                   fmt::format("writing tensor {} as safetensors: {}", Quoted(tensor.name), why),
                   {{"tensor", tensor.name}});
}

}  // namespace

absl::Status CheckForSafetensors(const OutTensor& tensor) {
  if (tensor.dtype > Dtype::kU64) {
    return Unsupported(tensor, fmt::format("the format has no dtype {}; leave it out with --exclude, "
                                           "or write another format with --to torch",
                                           NameOf(tensor.dtype)));
  }
  if (tensor.name == kMetadataKey) {
    return Unsupported(tensor, "the format keeps that name for itself; --rename gives it another");
  }
  if (ValidUtf8Prefix(tensor.name) != tensor.name.size()) {
    return Unsupported(tensor, "the name is not UTF-8; --rename gives it another");
  }
  return absl::OkStatus();
}

void SortForSafetensors(std::vector<const OutTensor*>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const OutTensor* a, const OutTensor* b) {
    return a->dtype != b->dtype ? a->dtype > b->dtype : a->name < b->name;
  });
}

absl::StatusOr<std::string> SafetensorsHeader(const std::vector<const OutTensor*>& tensors,
                                              const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += fmt::format("\"{}\":{{", kMetadataKey);
    bool first = true;
    for (const auto& [key, value] : metadata) {
      json += fmt::format("{}{}:{}", std::exchange(first, false) ? "" : ",", Json(key), Json(value));
    }
    json += "}";
  }
  uint64_t at = 0;
  for (const OutTensor* tensor : tensors) {
    CKPTD_RETURN_IF_ERROR(CheckForSafetensors(*tensor));
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json.size() > 1 ? "," : "", Json(tensor->name), NameOf(tensor->dtype),
                        fmt::join(tensor->from->shape, ","), at, at + tensor->bytes);
    at += tensor->bytes;
  }
  json += "}";
  json.append((kAlignment - json.size() % kAlignment) % kAlignment, ' ');
  if (json.size() > kMaxWrittenHeader) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kTargetInvalid,
                     fmt::format("writing safetensors: the header of {} tensors would have {} bytes, "
                                 "and loaders take {}; spread them over files with --max-shard-size",
                                 tensors.size(), json.size(), kMaxWrittenHeader));
  }
  return LittleEndian(json.size()) + json;
}

absl::Status WriteSafetensors(const std::string& path, std::vector<const OutTensor*> tensors,
                              const std::map<std::string, std::string>& metadata,
                              TensorCopier& copier) {
  SortForSafetensors(tensors);
  CKPTD_ASSIGN_OR_RETURN(const std::string header, SafetensorsHeader(tensors, metadata));
  CKPTD_ASSIGN_OR_RETURN(OutputFile out, OutputFile::Create(path));
  CKPTD_RETURN_IF_ERROR(out.Skip(header.size()));
  for (const OutTensor* tensor : tensors) {
    CKPTD_RETURN_IF_ERROR(copier.Append(*tensor, out, nullptr));
  }
  CKPTD_RETURN_IF_ERROR(out.WriteAt(0, header));
  return out.Finish();
}

}  // namespace ckptd
