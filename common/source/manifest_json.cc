// A manifest as JSON, there and back.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/manifest.h"

namespace ckptd {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr std::string_view kDigest = "XXH3-64 over 1 MiB blocks";

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   "reading a manifest: " + why +
                       "; name one that `ckptctl verify --write-manifest` has written");
}

std::string Hex(uint64_t digest) { return fmt::format("{:016x}", digest); }

// ASCII, so that no name can steer a terminal.
std::string Text(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::optional<uint64_t> Number(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_unsigned()) return std::nullopt;
  return at->get<uint64_t>();
}

std::optional<std::string> String(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_string()) return std::nullopt;
  return at->get<std::string>();
}

std::optional<uint64_t> Digest(const Json& object, const char* key) {
  const std::optional<std::string> text = String(object, key);
  uint64_t value = 0;
  if (!text.has_value() || text->size() != 16) return std::nullopt;
  const char* const end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, value, 16);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

std::optional<Shape> ShapeOf(const Json& object) {
  const auto at = object.find("shape");
  if (at == object.end() || !at->is_array()) return std::nullopt;
  Shape shape;
  for (const Json& size : *at) {
    if (!size.is_number_unsigned()) return std::nullopt;
    shape.push_back(size.get<uint64_t>());
  }
  return shape;
}

bool ReadFile(const Json& json, Manifest& manifest) {
  if (!json.is_object()) return false;
  auto name = String(json, "name");
  const auto bytes = Number(json, "bytes");
  const auto header = Digest(json, "header");
  const auto digest = Digest(json, "digest");
  if (!name || !bytes || !header || !digest) return false;
  manifest.files.push_back({*std::move(name), *bytes, *header, *digest});
  return true;
}

bool ReadPiece(const Json& json, const Manifest& manifest, Manifest::Tensor& tensor) {
  if (!json.is_object()) return false;
  const auto file = Number(json, "file");
  const auto digest = Digest(json, "digest");
  if (!file || !digest || *file >= manifest.files.size()) return false;
  tensor.pieces.push_back({static_cast<uint32_t>(*file), *digest});
  return true;
}

// A tensor of one piece has file and digest itself.
bool ReadPieces(const Json& json, const Manifest& manifest, Manifest::Tensor& tensor) {
  const auto pieces = json.find("pieces");
  if (pieces == json.end()) return ReadPiece(json, manifest, tensor);
  if (!pieces->is_array() || pieces->empty()) return false;
  return std::all_of(pieces->begin(), pieces->end(), [&](const Json& piece) {
    return ReadPiece(piece, manifest, tensor);
  });
}

bool ReadTensor(const Json& json, Manifest& manifest) {
  if (!json.is_object()) return false;
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
    out += fmt::format("{}{{\"name\": {}, \"dtype\": \"{}\", \"shape\": {}, \"bytes\": {}, {}}}",
                       separator, Text(tensor.name), NameOf(tensor.dtype),
                       Json(tensor.shape).dump(), tensor.bytes, PiecesText(tensor.pieces));
    separator = ",\n";
  }
  return out + "]}\n";
}

absl::StatusOr<Manifest> ParseManifest(std::string_view json) {
  const Json root = Json::parse(json, nullptr, false);
  if (!root.is_object()) return Invalid("it is no JSON object");
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
  const auto files = root.find("files");
  const auto tensors = root.find("tensors");
  if (files == root.end() || !files->is_array() || tensors == root.end() || !tensors->is_array()) {
    return Invalid("a list \"files\" or \"tensors\" is missing");
  }
  for (const Json& file : *files) {
    if (!ReadFile(file, manifest)) {
      return Invalid(fmt::format("file number {} is incomplete", manifest.files.size()));
    }
  }
  for (const Json& tensor : *tensors) {
    if (!ReadTensor(tensor, manifest)) {
      return Invalid(fmt::format("tensor number {} is incomplete", manifest.tensors.size()));
    }
  }
  return manifest;
}

}  // namespace ckptd
