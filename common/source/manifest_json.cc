// A manifest as JSON, there and back.
#include <fmt/ranges.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/manifest.h"

namespace ckptd {
namespace {

using Json = rapidjson::Value;

constexpr int kVersion = 1;
constexpr std::string_view kDigest = "XXH3-64 over 1 MiB blocks";

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   "reading a manifest: " + why +
                       "; name one that `ckptctl verify --write-manifest` has written");
}

std::string Hex(uint64_t digest) { return fmt::format("{:016x}", digest); }

// ASCII, so that no name can steer a terminal.
std::string Text(std::string_view text) { return JsonString(text, JsonCharacters::kAscii); }

// Null where there is none. Of a key that is stated twice the last value counts.
const Json* Find(const Json& object, std::string_view key) {
  const Json* found = nullptr;
  for (const auto& member : object.GetObject()) {
    const std::string_view name(member.name.GetString(), member.name.GetStringLength());
    if (name == key) found = &member.value;
  }
  return found;
}

std::optional<uint64_t> Number(const Json& object, std::string_view key) {
  const Json* const value = Find(object, key);
  if (value == nullptr || !value->IsUint64()) return std::nullopt;
  return value->GetUint64();
}

std::optional<std::string> String(const Json& object, std::string_view key) {
  const Json* const value = Find(object, key);
  if (value == nullptr || !value->IsString()) return std::nullopt;
  return std::string(value->GetString(), value->GetStringLength());
}

// Null where there is none, or no list.
const Json* List(const Json& object, std::string_view key) {
  const Json* const value = Find(object, key);
  return value != nullptr && value->IsArray() ? value : nullptr;
}

std::optional<uint64_t> Digest(const Json& object, std::string_view key) {
  const std::optional<std::string> text = String(object, key);
  uint64_t value = 0;
  if (!text.has_value() || text->size() != 16) return std::nullopt;
  const char* const end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, value, 16);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

std::optional<Shape> ShapeOf(const Json& object) {
  const Json* const sizes = List(object, "shape");
  if (sizes == nullptr) return std::nullopt;
  Shape shape;
  for (const Json& size : sizes->GetArray()) {
    if (!size.IsUint64()) return std::nullopt;
    shape.push_back(size.GetUint64());
  }
  return shape;
}

bool ReadFile(const Json& json, Manifest& manifest) {
  if (!json.IsObject()) return false;
  auto name = String(json, "name");
  const auto bytes = Number(json, "bytes");
  const auto header = Digest(json, "header");
  const auto digest = Digest(json, "digest");
  if (!name || !bytes || !header || !digest) return false;
  manifest.files.push_back({*std::move(name), *bytes, *header, *digest});
  return true;
}

bool ReadPiece(const Json& json, const Manifest& manifest, Manifest::Tensor& tensor) {
  if (!json.IsObject()) return false;
  const auto file = Number(json, "file");
  const auto digest = Digest(json, "digest");
  if (!file || !digest || *file >= manifest.files.size()) return false;
  tensor.pieces.push_back({static_cast<uint32_t>(*file), *digest});
  return true;
}

// A tensor of one piece has file and digest itself.
bool ReadPieces(const Json& json, const Manifest& manifest, Manifest::Tensor& tensor) {
  if (Find(json, "pieces") == nullptr) return ReadPiece(json, manifest, tensor);
  const Json* const pieces = List(json, "pieces");
  if (pieces == nullptr || pieces->Empty()) return false;
  return std::all_of(pieces->Begin(), pieces->End(),
                     [&](const Json& piece) { return ReadPiece(piece, manifest, tensor); });
}

bool ReadTensor(const Json& json, Manifest& manifest) {
  if (!json.IsObject()) return false;
  auto name = String(json, "name");
  const auto dtype = ParseDtype(String(json, "dtype").value_or(""));
  auto shape = ShapeOf(json);
  const auto bytes = Number(json, "bytes");
  if (!name || !dtype || !shape || !bytes) return false;
  Manifest::Tensor tensor{*std::move(name), *dtype, *std::move(shape), *bytes, {}};
  if (!ReadPieces(json, manifest, tensor)) return false;
  manifest.tensors.push_back(std::move(tensor));
  return true;
}

std::string PieceText(const Manifest::Piece& piece) {
  return fmt::format("\"file\": {}, \"digest\": \"{}\"", piece.file, Hex(piece.digest));
}

std::string PiecesText(const std::vector<Manifest::Piece>& pieces) {
  if (pieces.size() == 1) return PieceText(pieces.front());
  std::string out = "\"pieces\": [";
  for (size_t i = 0; i < pieces.size(); ++i) {
    out += fmt::format("{}{{{}}}", i == 0 ? "" : ", ", PieceText(pieces[i]));
  }
  return out + "]";
}

}  // namespace

std::string ToJson(const Manifest& manifest) {
  std::string out = fmt::format("{{\"ckptd_manifest\": {},\n\"digest\": \"{}\",\n\"source\": {},\n",
                                kVersion, kDigest, Text(manifest.source));
  out += "\"files\": [";
  std::string_view separator = "\n";
  for (const Manifest::File& file : manifest.files) {
    out += fmt::format("{}{{\"name\": {}, \"bytes\": {}, \"header\": \"{}\", \"digest\": \"{}\"}}",
                       separator, Text(file.name), file.bytes, Hex(file.header), Hex(file.digest));
    separator = ",\n";
  }
  out += "],\n\"tensors\": [";
  separator = "\n";
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    out += fmt::format("{}{{\"name\": {}, \"dtype\": \"{}\", \"shape\": [{}], \"bytes\": {}, {}}}",
                       separator, Text(tensor.name), NameOf(tensor.dtype),
                       fmt::join(tensor.shape, ","), tensor.bytes, PiecesText(tensor.pieces));
    separator = ",\n";
  }
  return out + "]}\n";
}

absl::StatusOr<Manifest> ParseManifest(std::string_view json) {
  rapidjson::Document root;
  if (const auto fault = ParseJson(json, JsonNumbers::kOfKind, root); fault.has_value()) {
    return Invalid(fmt::format("it is no JSON near byte {}", *fault));
  }
  if (!root.IsObject()) return Invalid("it is no JSON object");
  const auto version = Number(root, "ckptd_manifest");
  if (!version.has_value()) return Invalid("the key \"ckptd_manifest\" is missing");
  if (*version != kVersion || String(root, "digest") != kDigest) {
    return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                     fmt::format("reading a manifest: it is of version {} with another digest than "
                                 "this ckptctl computes (version {}); write it anew, or use the "
                                 "ckptctl that wrote it",
                                 *version, kVersion));
  }
  Manifest manifest;
  manifest.source = String(root, "source").value_or("");
  const Json* const files = List(root, "files");
  const Json* const tensors = List(root, "tensors");
  if (files == nullptr || tensors == nullptr) {
    return Invalid("a list \"files\" or \"tensors\" is missing");
  }
  for (const Json& file : files->GetArray()) {
    if (!ReadFile(file, manifest)) {
      return Invalid(fmt::format("file number {} is incomplete", manifest.files.size()));
    }
  }
  for (const Json& tensor : tensors->GetArray()) {
    if (!ReadTensor(tensor, manifest)) {
      return Invalid(fmt::format("tensor number {} is incomplete", manifest.tensors.size()));
    }
  }
  return manifest;
}

}  // namespace ckptd
