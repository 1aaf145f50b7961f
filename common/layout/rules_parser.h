// Reads the text of a layout: a short form or JSON. deploy/config/layout.example.json shows the
// JSON schema, with every key.
#ifndef CKPTD_COMMON_LAYOUT_RULES_PARSER_H_
#define CKPTD_COMMON_LAYOUT_RULES_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/layout/layout_json.h"

namespace ckptd {

// Longer texts are refused without reading them.
inline constexpr size_t kMaxLayoutTextBytes = size_t{4} << 20;

// The number of ranks in a mesh of that shape. Stops multiplying above kMaxWorldSize, so the
// result never wraps.
uint64_t RanksIn(const std::vector<uint32_t>& shape);

// 0, 1, ... count - 1.
std::vector<uint32_t> RanksUpTo(uint64_t count);

// Parses one text. Used once, by one thread. All errors are InvalidArgument LAYOUT_INVALID and
// name their key.
class LayoutRulesParser {
 public:
  absl::StatusOr<LayoutRules> Parse(std::string_view text);

 private:
  absl::Status ParseShort(std::string_view text);
  absl::Status ParseJson(std::string_view text);
  absl::Status ReadMeshes(const JsonObject& top);
  absl::Status ReadWorldSize(const JsonObject& top);
  absl::Status ReadRules(const JsonObject& top);
  absl::StatusOr<LayoutRules::Rule> ReadRule(const JsonObject& object);
  absl::Status ReadSharding(const JsonObject& object, Sharding& sharding);
  absl::StatusOr<uint32_t> ReadMeshName(const JsonObject& object);
  void Describe();

  // One rule for every tensor, with one mesh of that shape (no mesh for whole tensors).
  void UseOneRule(const std::vector<uint32_t>& shape, const Sharding& sharding);

  LayoutRules rules_;
  std::vector<std::string> mesh_names_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_RULES_PARSER_H_
