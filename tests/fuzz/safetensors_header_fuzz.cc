// Feeds arbitrary bytes to the header parser as a whole file. What is accepted
// must be in bounds and cover the data exactly.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/source/safetensors/header.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

void CheckAccepted(const SafetensorsHeader& header, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const HeaderTensor& tensor = header.tensors[i];
    Require(tensor.begin <= tensor.end && tensor.end <= data_bytes, "a tensor is in bounds");
    Require(tensor.shape.size() <= kMaxTensorDims, "a shape is short");
    Require(i == 0 || header.tensors[i - 1].name < tensor.name, "tensors are sorted");
    const auto bytes = TensorBytesOf(tensor.name, tensor.dtype, tensor.shape);
    Require(bytes.ok() && *bytes == tensor.end - tensor.begin, "a tensor has its bytes");
    covered += *bytes;
  }
  Require(covered == data_bytes, "tensors cover the data");
}

void FuzzHeader(std::span<const uint8_t> file) {
  const auto length = ParseHeaderLength(std::as_bytes(file), file.size());
  if (!length.ok()) return RequireGoodError(length.status());
  Require(*length <= file.size() - kHeaderLengthBytes, "the header is in the file");
  const auto* const text = reinterpret_cast<const char*>(file.data());
  const std::string_view json(text + kHeaderLengthBytes, *length);
  const auto header = ParseSafetensorsHeader(json, file.size());
  if (!header.ok()) return RequireGoodError(header.status());
  CheckAccepted(*header, file.size() - kHeaderLengthBytes - *length);
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzHeader({data, size});
  return 0;
}
