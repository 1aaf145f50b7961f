// The JSON form of a layout, key by key.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/layout/placement_text.h"
#include "common/layout/rules_parser.h"
#include "common/layout/validate.h"

namespace ckptd {
namespace {

// All rules are tried for every tensor, so their number is limited.
constexpr size_t kMaxRules = 4096;
constexpr size_t kMaxMeshes = 64;
constexpr size_t kMaxNameBytes = 1024;

absl::StatusOr<Mesh> ReadMesh(const rapidjson::Value& value, const std::string& where) {
  CKPTD_ASSIGN_OR_RETURN(const JsonObject object,
                         JsonObject::Open(value, where, {"shape", "dim_names", "ranks"}));
  CKPTD_ASSIGN_OR_RETURN(auto shape, object.GetNumbers("shape"));
  CKPTD_ASSIGN_OR_RETURN(auto dim_names, object.GetStrings("dim_names"));
  CKPTD_ASSIGN_OR_RETURN(auto ranks, object.GetNumbers("ranks"));
  if (!shape.has_value()) {
    return LayoutTextError(fmt::format("\"{}\" lacks the key \"shape\", such as [2, 4]", where));
  }
  Mesh mesh;
  mesh.shape = *std::move(shape);
  if (dim_names.has_value()) mesh.dim_names = *std::move(dim_names);
  // CheckMesh refuses a product above the limit before anything is allocated for it.
  const uint64_t count = RanksIn(mesh.shape);
  if (ranks.has_value()) {
    mesh.ranks = *std::move(ranks);
  } else if (count <= LayoutRules::kMaxWorldSize) {
    mesh.ranks = RanksUpTo(count);
  }
  if (const absl::Status status = CheckMesh(mesh); !status.ok()) {
    return LayoutTextError(fmt::format("\"{}\": {}", where, MessageOf(status)));
  }
  return mesh;
}

// A string or a list of strings.
absl::StatusOr<std::vector<std::string>> ReadPatterns(const JsonObject& object) {
  const rapidjson::Value* value = object.Get("match");
  std::vector<std::string> patterns;
  if (value == nullptr) {
    return LayoutTextError(fmt::format(
        "\"{}\" lacks the key \"match\": name patterns such as [\"model.layers.*.weight\"]",
        object.where()));
  }
  if (value->IsString()) {
    patterns.emplace_back(value->GetString(), value->GetStringLength());
  } else {
    CKPTD_ASSIGN_OR_RETURN(auto list, object.GetStrings("match"));
    patterns = *std::move(list);
  }
  const bool too_long = std::any_of(patterns.begin(), patterns.end(), [](const std::string& text) {
    return text.size() > kMaxNameBytes;
  });
  if (patterns.empty() || too_long) {
    return LayoutTextError(fmt::format("\"{}\" must hold at least one pattern, each of at most {} "
                                       "bytes",
                                       object.Path("match"), kMaxNameBytes));
  }
  return patterns;
}

absl::StatusOr<std::vector<Placement>> ReadPlacements(const JsonObject& object) {
  CKPTD_ASSIGN_OR_RETURN(const auto texts, object.GetStrings("placements"));
  std::vector<Placement> placements;
  for (const std::string& text : texts.value_or(std::vector<std::string>{})) {
    const auto placement = ParsePlacement(text);
    if (!placement.has_value()) {
      return LayoutTextError(fmt::format(
          "\"{}\" has the unknown placement \"{}\"; allowed are replicate, shard(DIM) and "
          "strided_shard(DIM,SPLIT_FACTOR)",
          object.Path("placements"), text.substr(0, 80)));
    }
    placements.push_back(*placement);
  }
  return placements;
}

absl::StatusOr<Dtype> ReadDtype(const JsonObject& object) {
  CKPTD_ASSIGN_OR_RETURN(const auto name, object.GetString("dtype"));
  if (!name.has_value()) return Dtype::kUnspecified;
  const auto dtype = ParseDtype(*name);
  if (!dtype.has_value()) {
    return LayoutTextError(fmt::format("\"{}\" is the unknown dtype \"{}\"; use a safetensors name "
                                       "such as BF16, F16, F32 or F64",
                                       object.Path("dtype"), name->substr(0, 80)));
  }
  return *dtype;
}

}  // namespace

absl::Status LayoutRulesParser::ReadMeshes(const JsonObject& top) {
  const rapidjson::Value* one = top.Get("mesh");
  const rapidjson::Value* many = top.Get("meshes");
  if (one != nullptr && many != nullptr) {
    return LayoutTextError("it has \"mesh\" and \"meshes\"; use \"meshes\" for more than one");
  }
  if (one != nullptr) {
    CKPTD_ASSIGN_OR_RETURN(Mesh mesh, ReadMesh(*one, "mesh"));
    rules_.meshes_.push_back(std::move(mesh));
    mesh_names_.emplace_back();
  }
  if (many == nullptr) return absl::OkStatus();
  if (!many->IsObject() || many->MemberCount() == 0 || many->MemberCount() > kMaxMeshes) {
    return LayoutTextError(fmt::format(
        "\"meshes\" must be an object of 1 to {} named meshes, such as {{\"dense\": {{\"shape\": "
        "[2, 4]}}}}",
        kMaxMeshes));
  }
  for (const auto& member : many->GetObject()) {
    std::string name(member.name.GetString(), member.name.GetStringLength());
    if (name.empty() || name.size() > kMaxNameBytes) {
      return LayoutTextError(fmt::format("\"meshes\" has a name of {} bytes; 1 to {} are allowed",
                                         name.size(), kMaxNameBytes));
    }
    if (std::find(mesh_names_.begin(), mesh_names_.end(), name) != mesh_names_.end()) {
      return LayoutTextError(fmt::format("\"meshes\" has the mesh \"{}\" twice", name));
    }
    CKPTD_ASSIGN_OR_RETURN(Mesh mesh, ReadMesh(member.value, fmt::format("meshes.{}", name)));
    rules_.meshes_.push_back(std::move(mesh));
    mesh_names_.push_back(std::move(name));
  }
  return absl::OkStatus();
}

absl::Status LayoutRulesParser::ReadWorldSize(const JsonObject& top) {
  CKPTD_ASSIGN_OR_RETURN(const auto stated, top.GetNumber("world_size"));
  uint64_t needed = 0;
  for (const Mesh& mesh : rules_.meshes_) {
    for (const uint32_t rank : mesh.ranks) needed = std::max(needed, uint64_t{rank} + 1);
  }
  const uint64_t world_size = stated.value_or(static_cast<uint32_t>(needed));
  if (needed > LayoutRules::kMaxWorldSize || world_size > LayoutRules::kMaxWorldSize) {
    return LayoutTextError(fmt::format("it has more than {} ranks", LayoutRules::kMaxWorldSize));
  }
  if (world_size == 0) {
    return LayoutTextError("it does not say which ranks; add \"mesh\", "
                           "\"meshes\" or \"world_size\"");
  }
  if (world_size < needed) {
    return LayoutTextError(fmt::format("\"world_size\" is {} but a mesh holds rank {}", world_size,
                                       needed - 1));
  }
  rules_.world_size_ = static_cast<uint32_t>(world_size);
  return absl::OkStatus();
}

absl::Status LayoutRulesParser::ReadRules(const JsonObject& top) {
  const rapidjson::Value* list = top.Get("rules");
  if (list != nullptr && (!list->IsArray() || list->Size() > kMaxRules)) {
    return LayoutTextError(fmt::format("\"rules\" must be a list of at most {} rules", kMaxRules));
  }
  if (list != nullptr) {
    for (rapidjson::SizeType i = 0; i < list->Size(); ++i) {
      CKPTD_ASSIGN_OR_RETURN(
          const JsonObject object,
          JsonObject::Open((*list)[i], fmt::format("rules[{}]", i),
                           {"description", "match", "mesh", "placements", "padded", "dtype",
                            "only_ranks", "drop"}));
      CKPTD_ASSIGN_OR_RETURN(LayoutRules::Rule rule, ReadRule(object));
      CKPTD_ASSIGN_OR_RETURN(rule.patterns, ReadPatterns(object));
      rules_.rules_.push_back(std::move(rule));
    }
  }
  if (const rapidjson::Value* rest = top.Get("default"); rest != nullptr) {
    CKPTD_ASSIGN_OR_RETURN(
        const JsonObject object,
        JsonObject::Open(*rest, "default",
                         {"description", "mesh", "placements", "padded", "dtype", "only_ranks",
                          "drop"}));
    CKPTD_ASSIGN_OR_RETURN(LayoutRules::Rule rule, ReadRule(object));
    rule.patterns = {"*"};
    rules_.rules_.push_back(std::move(rule));
  }
  if (!rules_.rules_.empty()) return absl::OkStatus();
  return LayoutTextError("it has neither \"rules\" nor \"default\"; add at least one");
}

absl::StatusOr<LayoutRules::Rule> LayoutRulesParser::ReadRule(const JsonObject& object) {
  LayoutRules::Rule rule;
  CKPTD_RETURN_IF_ERROR(object.GetString("description").status());
  CKPTD_ASSIGN_OR_RETURN(const auto drop, object.GetBool("drop"));
  rule.drop = drop.value_or(false);
  CKPTD_ASSIGN_OR_RETURN(rule.dtype, ReadDtype(object));
  CKPTD_RETURN_IF_ERROR(ReadSharding(object, rule.sharding));
  CKPTD_ASSIGN_OR_RETURN(const auto only, object.GetNumbers("only_ranks"));
  if (only.has_value()) rule.only_ranks = *only;
  std::sort(rule.only_ranks.begin(), rule.only_ranks.end());
  if (only.has_value() && (only->empty() || rule.only_ranks.back() >= rules_.world_size_)) {
    return LayoutTextError(fmt::format("\"{}\" must name ranks from 0 to {}",
                                       object.Path("only_ranks"), rules_.world_size_ - 1));
  }
  const bool more = rule.sharding.mesh.has_value() || rule.dtype != Dtype::kUnspecified ||
                    only.has_value();
  if (rule.drop && more) {
    return LayoutTextError(fmt::format(
        "\"{}\" drops its tensors, so placements, dtype and only_ranks mean nothing there; remove "
        "them or \"drop\"",
        object.where()));
  }
  return rule;
}

absl::StatusOr<uint32_t> LayoutRulesParser::ReadMeshName(const JsonObject& object) {
  CKPTD_ASSIGN_OR_RETURN(const auto name, object.GetString("mesh"));
  if (!name.has_value() && mesh_names_.size() == 1) return 0u;
  const auto found = std::find(mesh_names_.begin(), mesh_names_.end(), name.value_or(""));
  if (name.has_value() && !name->empty() && found != mesh_names_.end()) {
    return static_cast<uint32_t>(found - mesh_names_.begin());
  }
  return LayoutTextError(fmt::format(
      "\"{}\" needs the name of a mesh for its placements; \"meshes\" has [{}]",
      object.Path("mesh"), fmt::join(mesh_names_, ", ")));
}

absl::Status LayoutRulesParser::ReadSharding(const JsonObject& object, Sharding& sharding) {
  CKPTD_ASSIGN_OR_RETURN(const auto padded, object.GetBool("padded"));
  CKPTD_ASSIGN_OR_RETURN(sharding.placements, ReadPlacements(object));
  if (object.Get("placements") == nullptr) {
    if (!padded.has_value() && object.Get("mesh") == nullptr) return absl::OkStatus();
    return LayoutTextError(fmt::format("\"{}\" has \"mesh\" or \"padded\" without \"placements\"",
                                       object.where()));
  }
  CKPTD_ASSIGN_OR_RETURN(sharding.mesh, ReadMeshName(object));
  if (padded.value_or(false)) {
    // FSDP2's mesh dimension comes before those of tensor parallelism.
    const auto first = std::find_if(
        sharding.placements.begin(), sharding.placements.end(),
        [](const Placement& p) { return p.kind != Placement::Kind::kReplicate; });
    if (first == sharding.placements.end()) {
      return LayoutTextError(fmt::format("\"{}\" is true but no placement shards",
                                         object.Path("padded")));
    }
    sharding.padded_dim = first->dim;
  }
  const absl::Status status = CheckSharding(sharding, rules_.meshes_);
  if (status.ok()) return status;
  return LayoutTextError(fmt::format("\"{}\": {}", object.Path("placements"), MessageOf(status)));
}

}  // namespace ckptd
