// Feeds arbitrary bytes to the header parser as a whole file, and to the parser
// of index.json. What is accepted must be in bounds and cover the data exactly.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "common/checkpoint/index_json.h"
#include "common/checkpoint/safetensors_header.h"

namespace ckptd {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckAccepted(const SafetensorsHeader& header, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const HeaderTensor& tensor = header.tensors[i];
    Require(tensor.begin <= tensor.end && tensor.end <= data_bytes);
    Require(tensor.shape.size() <= kMaxTensorDims);
    Require(i == 0 || header.tensors[i - 1].name < tensor.name);
    const auto bytes = TensorBytesOf(tensor.name, tensor.dtype, tensor.shape);
    Require(bytes.ok() && *bytes == tensor.end - tensor.begin);
    covered += *bytes;
  }
  Require(covered == data_bytes);
}

void FuzzHeader(std::span<const uint8_t> file) {
  const auto length = ParseHeaderLength(std::as_bytes(file), file.size());
  if (!length.ok()) return;
  Require(*length <= file.size() - kHeaderLengthBytes);
  const auto* const text = reinterpret_cast<const char*>(file.data());
  const std::string_view json(text + kHeaderLengthBytes, *length);
  const auto header = ParseSafetensorsHeader(json, file.size());
  if (header.ok()) CheckAccepted(*header, file.size() - kHeaderLengthBytes - *length);
}

void FuzzIndex(std::span<const uint8_t> bytes) {
  const auto* const text = reinterpret_cast<const char*>(bytes.data());
  const auto index = ParseIndexJson(std::string_view(text, bytes.size()));
  if (!index.ok()) return;
  for (const auto& entry : index->weight_map) {
    Require(entry.second.ends_with(".safetensors"));
    Require(!entry.second.starts_with('/') && !entry.second.starts_with("../"));
    Require(entry.second.find("/../") == std::string::npos);
  }
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  ckptd::FuzzHeader(bytes);
  ckptd::FuzzIndex(bytes);
  return 0;
}
