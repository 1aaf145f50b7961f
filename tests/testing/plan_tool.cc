// Plans on request, for tests in other languages. Reads one JSON request per
// line from stdin, writes one JSON reply per line to stdout:
//   {"tensors": [{"name", "dtype", "shape",
//                 "pieces": [{"offset", "bytes", "offsets", "extents", "strides"}]}],
//    "aliases": {name: name}, "file_bytes": N,
//    "rules": text | "layout": {"meshes", "shardings", "targets", "world_size",
//                               "flats": [{"name", "sharding", "elements"}]},
//    "cast_to": "BF16", "keep_f32": [globs], "ranks": [0, 1]}
//   -> {"plans": [...], "read_bytes": N} or {"code", "reason", "message"}
// The source is one file. Trusts its input as tests do.
#include <fmt/format.h>

#include <iostream>
#include <string>
#include <utility>

#define RAPIDJSON_HAS_STDSTRING 1
#include <rapidjson/document.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include "common/base/status.h"
#include "common/layout/placement_text.h"
#include "common/plan/plan.h"

namespace ckptd {
namespace {

using Json = rapidjson::Value;
using Writer = rapidjson::Writer<rapidjson::StringBuffer>;

template <typename T>
std::vector<T> Numbers(const Json& value) {
  std::vector<T> numbers;
  for (const Json& item : value.GetArray()) numbers.push_back(static_cast<T>(item.GetUint64()));
  return numbers;
}

Dtype DtypeOf(const Json& value) {
  return ParseDtype({value.GetString(), value.GetStringLength()}).value_or(Dtype::kUnspecified);
}

CheckpointIndex ReadIndex(const Json& request) {
  CheckpointIndex index;
  index.source = "/data/source";
  index.files.resize(1);
  index.files[0].bytes = request["file_bytes"].GetUint64();
  for (const Json& item : request["tensors"].GetArray()) {
    TensorEntry entry;
    entry.name = item["name"].GetString();
    entry.dtype = DtypeOf(item["dtype"]);
    entry.shape = Numbers<uint64_t>(item["shape"]);
    for (const Json& part : item["pieces"].GetArray()) {
      entry.pieces.push_back(Piece{
          0, part["offset"].GetUint64(), part["bytes"].GetUint64(),
          Box{Numbers<uint64_t>(part["offsets"]), Numbers<uint64_t>(part["extents"])},
          Numbers<uint64_t>(part["strides"])});
    }
    index.tensors.push_back(std::move(entry));
  }
  if (request.HasMember("aliases")) {
    for (const auto& alias : request["aliases"].GetObject()) {
      index.aliases[alias.name.GetString()] = alias.value.GetString();
    }
  }
  return index;
}

Sharding ReadSharding(const Json& item) {
  Sharding sharding;
  if (item.HasMember("mesh")) sharding.mesh = item["mesh"].GetUint();
  if (item.HasMember("placements")) {
    for (const Json& text : item["placements"].GetArray()) {
      sharding.placements.push_back(ParsePlacement(text.GetString()).value_or(Placement{}));
    }
  }
  if (item.HasMember("padded_dim")) sharding.padded_dim = item["padded_dim"].GetInt();
  if (item.HasMember("boxes")) {
    for (const Json& box : item["boxes"].GetArray()) {
      sharding.boxes.push_back(
          Box{Numbers<uint64_t>(box["offsets"]), Numbers<uint64_t>(box["extents"])});
    }
  }
  return sharding;
}

RankLayout ReadRankLayout(const Json& form, uint32_t rank) {
  RankLayout layout;
  layout.rank = rank;
  layout.world_size = form["world_size"].GetUint();
  for (const Json& item : form["meshes"].GetArray()) {
    layout.meshes.push_back(
        Mesh{Numbers<uint32_t>(item["shape"]), {}, Numbers<uint32_t>(item["ranks"])});
  }
  for (const Json& item : form["shardings"].GetArray()) {
    layout.shardings.push_back(ReadSharding(item));
  }
  for (const Json& item : form["targets"].GetArray()) {
    TargetSpec& target = layout.targets.emplace_back();
    target.name = item["name"].GetString();
    target.sharding = item["sharding"].GetUint();
    if (item.HasMember("dtype")) target.dtype = DtypeOf(item["dtype"]);
    if (item.HasMember("flat")) {
      target.flat = FlatPlace{item["flat"].GetUint(), item["begin"].GetUint64()};
    }
  }
  if (!form.HasMember("flats")) return layout;
  for (const Json& item : form["flats"].GetArray()) {
    layout.flats.push_back(
        {item["name"].GetString(), item["sharding"].GetUint(), item["elements"].GetUint64()});
  }
  return layout;
}

absl::StatusOr<RankLayout> LayoutOf(const Json& request, const CheckpointIndex& index,
                                    uint32_t rank) {
  if (request.HasMember("layout")) return ReadRankLayout(request["layout"], rank);
  CKPTD_ASSIGN_OR_RETURN(const LayoutRules rules, LayoutRules::Parse(request["rules"].GetString()));
  return rules.ForRank(index, rank);
}

DtypePolicy ReadPolicy(const Json& request) {
  DtypePolicy policy;
  if (request.HasMember("cast_to")) policy.cast_to = DtypeOf(request["cast_to"]);
  if (request.HasMember("keep_f32")) {
    for (const Json& glob : request["keep_f32"].GetArray()) {
      policy.keep_f32.emplace_back(glob.GetString());
    }
  }
  return policy;
}

void WriteText(Writer& out, const char* key, std::string_view text) {
  out.Key(key);
  out.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

void WriteNumber(Writer& out, const char* key, uint64_t number) {
  out.Key(key);
  out.Uint64(number);
}

template <typename Numbers>
void WriteNumbers(Writer& out, const char* key, const Numbers& numbers, size_t count) {
  out.Key(key);
  out.StartArray();
  for (size_t i = 0; i < count; ++i) out.Uint64(numbers[i]);
  out.EndArray();
}

void WriteTensor(Writer& out, const PlannedTensor& tensor) {
  out.StartObject();
  WriteText(out, "name", tensor.name);
  out.Key("aliases");
  out.StartArray();
  for (const std::string& alias : tensor.aliases) out.String(alias);
  out.EndArray();
  WriteText(out, "dtype", NameOf(tensor.dtype));
  WriteNumbers(out, "shape", tensor.shape, tensor.shape.size());
  WriteNumber(out, "offset", tensor.offset);
  WriteNumber(out, "bytes", tensor.bytes);
  WriteNumber(out, "padded_bytes", tensor.padded_bytes);
  out.EndObject();
}

void WriteOp(Writer& out, const CopyOp& op) {
  out.StartObject();
  WriteNumber(out, "tensor", op.tensor);
  WriteText(out, "from", NameOf(op.from));
  WriteText(out, "to", NameOf(op.to));
  WriteNumber(out, "file_offset", op.file_offset);
  WriteNumber(out, "slab_offset", op.slab_offset);
  WriteNumber(out, "run_bytes", op.run_bytes);
  WriteNumbers(out, "count", op.count, op.dims);
  WriteNumbers(out, "file_stride", op.file_stride, op.dims);
  WriteNumbers(out, "slab_stride", op.slab_stride, op.dims);
  out.EndObject();
}

void WriteFlat(Writer& out, const PlannedFlat& flat) {
  out.StartObject();
  WriteText(out, "name", flat.name);
  WriteText(out, "dtype", NameOf(flat.dtype));
  WriteNumber(out, "offset", flat.offset);
  WriteNumber(out, "elements", flat.elements);
  out.EndObject();
}

void WritePlan(Writer& out, const RankPlan& plan) {
  out.StartObject();
  WriteNumber(out, "rank", plan.rank);
  WriteNumber(out, "slab_bytes", plan.slab_bytes);
  WriteText(out, "digest", HexDigest(plan.digest));
  out.Key("tensors");
  out.StartArray();
  for (const PlannedTensor& tensor : plan.tensors) WriteTensor(out, tensor);
  out.EndArray();
  out.Key("flats");
  out.StartArray();
  for (const PlannedFlat& flat : plan.flats) WriteFlat(out, flat);
  out.EndArray();
  out.Key("ops");
  out.StartArray();
  for (const CopyOp& op : plan.ops) WriteOp(out, op);
  out.EndArray();
  out.EndObject();
}

absl::StatusOr<std::string> Answer(const Json& request) {
  const CheckpointIndex index = ReadIndex(request);
  const DtypePolicy policy = ReadPolicy(request);
  std::vector<RankPlan> plans;
  for (const uint32_t rank : Numbers<uint32_t>(request["ranks"])) {
    CKPTD_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(request, index, rank));
    CKPTD_ASSIGN_OR_RETURN(RankPlan plan, PlanRank(index, layout, policy));
    plans.push_back(std::move(plan));
  }
  rapidjson::StringBuffer buffer;
  Writer out(buffer);
  out.StartObject();
  out.Key("plans");
  out.StartArray();
  for (const RankPlan& plan : plans) WritePlan(out, plan);
  out.EndArray();
  WriteNumber(out, "read_bytes", ReadBytesPerFile(index, plans)[0]);
  out.EndObject();
  return std::string(buffer.GetString(), buffer.GetSize());
}

std::string ErrorText(const absl::Status& status) {
  rapidjson::StringBuffer buffer;
  Writer out(buffer);
  out.StartObject();
  WriteText(out, "code", absl::StatusCodeToString(status.code()));
  WriteText(out, "reason", ReasonOf(status));
  WriteText(out, "message", MessageOf(status));
  out.EndObject();
  return {buffer.GetString(), buffer.GetSize()};
}

}  // namespace
}  // namespace ckptd

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    rapidjson::Document request;
    if (request.Parse(line.data(), line.size()).HasParseError()) {
      std::cerr << "plan_tool: a request is no JSON; write one object per line\n";
      return 2;
    }
    const auto answer = ckptd::Answer(request);
    std::cout << (answer.ok() ? *answer : ckptd::ErrorText(answer.status())) << std::endl;
  }
  return 0;
}
