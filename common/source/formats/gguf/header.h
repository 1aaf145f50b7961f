// The header of a GGUF file: what ggml's programs store beside weights, and where each tensor lies.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_GGUF_HEADER_H_
#define CKPTD_COMMON_SOURCE_FORMATS_GGUF_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/dtype.h"
#include "common/source/index.h"
#include "common/source/storage.h"

namespace ckptd::gguf {

// Ours, far above what models have: the tokens of a large vocabulary take 20 MB.
inline constexpr uint64_t kMaxHeaderBytes = 256'000'000;
inline constexpr uint64_t kMaxTensors = 1'000'000;
inline constexpr size_t kMaxKeys = 100'000;

struct TensorInfo {
  std::string name;
  Shape shape;          // outermost first; the file has it the other way round
  uint32_t type = 0;    // as ggml numbers its types
  uint64_t offset = 0;  // from data_start
};

struct Header {
  bool big_endian = false;
  std::vector<TensorInfo> tensors;
  // Numbers, booleans and texts as JSON, by their keys. Lists (tokens of a vocabulary) are passed
  // over.
  std::map<std::string, std::string> values;
  uint64_t data_start = 0;  // absolute offset of the data, in bytes
  uint64_t hash = 0;        // XXH3-64 of all bytes before it, padding left out
};

// Whether the object begins as GGUF files do. Errors mean no.
bool IsGguf(const ReadableObject& object);

// Reads the header of versions 2 and 3, in either order of bytes, in small steps: memory is needed
// for what is kept alone. Errors, without the object's path: DataLoss SOURCE_INVALID, InvalidArgument
// SOURCE_INVALID where a limit is passed, Unimplemented SOURCE_UNSUPPORTED for another version;
// those of ReadableObject::ReadAt.
absl::StatusOr<Header> ReadHeader(const ReadableObject& object);

// The type of elements that lie in the file as they are; nullopt for those that are quantised.
std::optional<Dtype> PlainDtype(uint32_t ggml_type);

// "Q8_0"; "type 77" for one that is not known.
std::string NameOfType(uint32_t ggml_type);

}  // namespace ckptd::gguf

#endif  // CKPTD_COMMON_SOURCE_FORMATS_GGUF_HEADER_H_
