#include "common/source/weight_map/index_json.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

using StringMap = std::map<std::string, std::string>;

absl::Status Invalid(const std::string& why, const Facts& facts = {}) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   why +
                       "; copy or download the index again, or load its files by naming one "
                       "of them or a folder without the index",
                   facts);
}

// Receives the parser's events. Members of the root, of "weight_map" and of
// "metadata" matter; what lies deeper is counted and skipped.
class IndexSax : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, IndexSax> {
 public:
  explicit IndexSax(std::string_view extension) : extension_(extension) {}
  using Size = rapidjson::SizeType;
  absl::StatusOr<IndexJson> Finish();
  // The error of an index that is refused: reading it ended at `byte`.
  absl::Status ErrorAt(size_t byte) {
    if (error_.ok()) Fail(fmt::format("it is not valid JSON near byte {}", byte));
    return error_;
  }

  // All that is neither text, list nor object.
  bool Default() { return OtherAt(depth_); }
  bool Double(double value) {
    not_finite_ = not_finite_ || !std::isfinite(value);
    return Default();
  }
  bool String(const char* text, Size size, bool /*copy*/);
  bool StartObject();
  bool Key(const char* text, Size size, bool /*copy*/) {
    if (depth_ <= 2) key_.assign(text, size);
    return true;
  }
  bool EndObject(Size /*members*/) { return Leave(); }
  bool StartArray() {
    ++depth_;
    return depth_ == 1 ? Fail("it is a list, not an object") : OtherAt(depth_ - 1);
  }
  bool EndArray(Size /*elements*/) { return Leave(); }

 private:
  bool Fail(const std::string& why) {
    error_ = Invalid(why);
    return false;
  }
  // A value that is neither string nor expected object, inside `depth` levels.
  bool OtherAt(uint64_t depth);
  bool Leave() {
    if (--depth_ == 1) inner_ = nullptr;
    return true;
  }

  const std::string_view extension_;  // of the files
  absl::Status error_;
  uint64_t depth_ = 0;
  std::string key_;
  StringMap* inner_ = nullptr;  // where the members of the second level go
  bool has_weight_map_ = false;
  bool only_strings_ = true;  // the root's values
  bool not_finite_ = false;   // a number is
  StringMap bare_;
  IndexJson out_;
};

bool IndexSax::OtherAt(uint64_t depth) {
  if (depth == 0) return Fail("it is not an object");
  if (depth == 1) only_strings_ = false;
  if (depth == 2 && inner_ == &out_.weight_map) {
    return Fail(fmt::format("its weight_map gives no file name for tensor {}", Quoted(key_)));
  }
  return true;
}

bool IndexSax::String(const char* text, Size size, bool /*copy*/) {
  if (depth_ == 0) return Fail("it is a string, not an object");
  StringMap* const to = depth_ == 1 ? &bare_ : depth_ == 2 ? inner_ : nullptr;
  if (to != nullptr) to->insert_or_assign(key_, std::string(text, size));
  return true;
}

bool IndexSax::StartObject() {
  ++depth_;
  if (depth_ == 1) return true;
  if (depth_ != 2) return OtherAt(depth_ - 1);
  only_strings_ = false;
  if (key_ == "weight_map") {
    has_weight_map_ = true;
    inner_ = &out_.weight_map;
  } else if (key_ == "metadata") {
    inner_ = &out_.metadata;
  }
  return true;
}

// Refuses names that could lead out of the index's folder, and files of other formats;
// returns the name without redundant parts.
absl::StatusOr<std::string> CheckShardName(const std::string& tensor, const std::string& name,
                                           std::string_view extension) {
  const Facts facts = {{"shard", name.substr(0, 4096)}, {"tensor", tensor.substr(0, 4096)}};
  if (const std::string_view why = WhyUnsafe(name); !why.empty()) {
    return Invalid(
        fmt::format("it puts tensor {} into file {}, {}", Quoted(tensor), Quoted(name), why),
        facts);
  }
  if (!name.ends_with(extension)) {
    return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                     fmt::format("it puts tensor {} into file {}, which is not {}; load its files "
                                 "by naming one of them or a folder without the index",
                                 Quoted(tensor), Quoted(name), extension),
                     facts);
  }
  return std::filesystem::path(name).lexically_normal().string();
}

absl::StatusOr<IndexJson> IndexSax::Finish() {
  if (!has_weight_map_) {
    if (!only_strings_) {
      return Invalid("it has no object \"weight_map\"", {{"error", kNoWeightMap}});
    }
    out_.weight_map = std::move(bare_);
  }
  if (out_.weight_map.empty()) return Invalid("it lists no tensors");
  StringMap checked;  // few files hold many tensors
  for (auto& entry : out_.weight_map) {
    std::string& file = entry.second;
    auto known = checked.find(file);
    if (known == checked.end()) {
      CKPTD_ASSIGN_OR_RETURN(std::string name, CheckShardName(entry.first, file, extension_));
      known = checked.emplace(file, std::move(name)).first;
    }
    file = known->second;
  }
  if (not_finite_) {
    out_.remarks.push_back("it holds NaN or Infinity, which Python writes and JSON does not have");
  }
  return std::move(out_);
}

}  // namespace

absl::StatusOr<IndexJson> ParseIndexJson(std::string_view json, std::string_view extension) {
  IndexSax sax(extension);
  const auto fault =
      ReadJson<rapidjson::kParseNanAndInfFlag>(std::string(json), JsonNumbers::kOfKind, sax);
  return fault.has_value() ? sax.ErrorAt(*fault) : sax.Finish();
}

}  // namespace ckptd
