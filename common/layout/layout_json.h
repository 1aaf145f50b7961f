// Typed access to a small JSON object. Every key must be known, occur once and have the right
// type. Errors are InvalidArgument LAYOUT_INVALID. They say where ("rules[2].placements"), what
// was found and what is allowed.
#ifndef CKPTD_COMMON_LAYOUT_LAYOUT_JSON_H_
#define CKPTD_COMMON_LAYOUT_LAYOUT_JSON_H_

#include <rapidjson/document.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

// A view: the document must outlive it. Not thread-safe.
class JsonObject {
 public:
  // `where` names the object in messages; empty for the top level.
  static absl::StatusOr<JsonObject> Open(const rapidjson::Value& value, std::string where,
                                         const std::vector<std::string_view>& allowed);

  // "rules[2].match": the full name of a key, for messages.
  std::string Path(std::string_view key) const;
  const std::string& where() const { return where_; }

  // The value of a key. Null if absent.
  const rapidjson::Value* Get(std::string_view key) const;

  // Typed values. Nullopt if absent.
  absl::StatusOr<std::optional<bool>> GetBool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string>> GetString(std::string_view key) const;
  absl::StatusOr<std::optional<uint32_t>> GetNumber(std::string_view key) const;
  absl::StatusOr<std::optional<std::vector<uint32_t>>> GetNumbers(std::string_view key) const;
  absl::StatusOr<std::optional<std::vector<std::string>>> GetStrings(std::string_view key) const;

 private:
  JsonObject(const rapidjson::Value& value, std::string where)
      : value_(&value), where_(std::move(where)) {}
  const rapidjson::Value* value_;
  std::string where_;
};

// LAYOUT_INVALID with this sentence after "reading the layout: ".
absl::Status LayoutTextError(const std::string& sentence);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_LAYOUT_JSON_H_
