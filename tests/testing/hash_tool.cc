// Reads the names of small sources from stdin, one a line, and answers each on stdout: the length
// of a JSON object in decimal and a newline, that object, then the bytes of its tensors one after
// the other, in row-major order and little-endian. For tests/python/test_fixtures.py.
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "common/source/piece.h"

namespace ckptd {
namespace {

using Json = rapidjson::Writer<rapidjson::StringBuffer>;

constexpr size_t kMaxFileBytes = size_t{1} << 30;

size_t PartsOf(Dtype dtype) {
  const bool complex =
      dtype == Dtype::kC32 || dtype == Dtype::kC64 || dtype == Dtype::kC128;
  return complex ? 2 : 1;
}

// Element by element, as slowly as it is plain.
void CopyPiece(const TensorEntry& tensor, const Piece& piece, const std::string& file,
               std::string& out) {
  const uint32_t bits = BitsOf(tensor.dtype);
  if (bits % 8 != 0) {  // such a tensor is one piece in order
    out.replace(0, piece.bytes, file, piece.offset, piece.bytes);
    return;
  }
  const size_t element = bits / 8;
  const Shape strides = StridesOf(piece);
  Shape at(tensor.shape.size(), 0);
  for (uint64_t n = ElementCount(piece.box.extents); n > 0; --n) {
    uint64_t from = 0;
    uint64_t to = 0;
    for (size_t dim = 0; dim < at.size(); ++dim) {
      from += at[dim] * strides[dim];
      to = to * tensor.shape[dim] + piece.box.offsets[dim] + at[dim];
    }
    std::string bytes = file.substr(piece.offset + from * element, element);
    const size_t part = element / PartsOf(tensor.dtype);
    for (size_t i = 0; tensor.big_endian && i < element; i += part) {
      std::reverse(bytes.begin() + i, bytes.begin() + i + part);
    }
    if (tensor.negates_real) bytes[part - 1] ^= '\x80';
    if (tensor.negates_imaginary && part < element) bytes[element - 1] ^= '\x80';
    out.replace(to * element, element, bytes);
    for (size_t dim = at.size(); dim-- > 0 && ++at[dim] == piece.box.extents[dim];) at[dim] = 0;
  }
}

absl::StatusOr<std::string> BytesOf(const CheckpointIndex& index, const TensorEntry& tensor,
                                    std::map<uint32_t, std::string>& files) {
  std::string out(ElementCount(tensor.shape) * BitsOf(tensor.dtype) / 8, '\xee');
  for (const Piece& piece : tensor.pieces) {
    if (files.count(piece.file) == 0) {
      CKPTD_ASSIGN_OR_RETURN(files[piece.file],
                             ReadSmallFile(index.files[piece.file].path, kMaxFileBytes));
    }
    CopyPiece(tensor, piece, files[piece.file], out);
  }
  return out;
}

void Write(std::string_view key, std::string_view text, Json& json) {
  json.Key(key.data(), static_cast<rapidjson::SizeType>(key.size()));
  json.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

void Write(std::string_view key, const std::map<std::string, std::string>& map, Json& json) {
  json.Key(key.data(), static_cast<rapidjson::SizeType>(key.size()));
  json.StartObject();
  for (const auto& [name, text] : map) Write(name, text, json);
  json.EndObject();
}

void WriteTensor(const CheckpointIndex& index, const TensorEntry& tensor, Json& json) {
  json.StartObject();
  Write("name", tensor.name, json);
  Write("dtype", NameOf(tensor.dtype), json);
  Write("kind", NameOf(tensor.kind), json);
  Write("group", index.groups[tensor.group], json);
  json.Key("bytes");
  json.Uint64(ElementCount(tensor.shape) * BitsOf(tensor.dtype) / 8);
  json.Key("shape");
  json.StartArray();
  for (const uint64_t size : tensor.shape) json.Uint64(size);
  json.EndArray();
  json.EndObject();
}

absl::Status Describe(const std::string& source, Json& json, std::string& bytes) {
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint opened, OpenWithRemarks(source));
  const CheckpointIndex& index = opened.index;
  std::map<uint32_t, std::string> files;
  for (const TensorEntry& tensor : index.tensors) {
    CKPTD_ASSIGN_OR_RETURN(const std::string more, BytesOf(index, tensor, files));
    bytes += more;
  }
  Write("format", index.format, json);
  json.Key("tensors");
  json.StartArray();
  for (const TensorEntry& tensor : index.tensors) WriteTensor(index, tensor, json);
  json.EndArray();
  Write("aliases", index.aliases, json);
  Write("values", index.values, json);
  Write("opaque", index.opaque, json);
  Write("metadata", index.metadata, json);
  json.Key("remarks");
  json.StartArray();
  for (const std::string& remark : opened.remarks) json.String(remark.c_str());
  json.EndArray();
  return absl::OkStatus();
}

void Answer(const std::string& source) {
  rapidjson::StringBuffer text;
  Json json(text);
  std::string bytes;
  json.StartObject();
  const absl::Status status = Describe(source, json, bytes);
  if (!status.ok()) {
    Write("error", MessageOf(status), json);
    Write("reason", ReasonOf(status), json);
    Write("facts", FactsOf(status), json);
    bytes.clear();
  }
  json.EndObject();
  std::cout << text.GetSize() << '\n' << text.GetString() << bytes;
}

}  // namespace
}  // namespace ckptd

int main() {
  std::string source;
  while (std::getline(std::cin, source)) ckptd::Answer(source);
  return 0;
}
