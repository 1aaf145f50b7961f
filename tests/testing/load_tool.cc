// Reads loads from stdin, one a line (source, layout and dtype with tabs between; no dtype: none is
// cast), and answers each on stdout: the length of a JSON object in decimal and a newline, that
// object with the table of each rank, then all ranks' slabs. For tests/python/test_format_matrix.py.
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <cstddef>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/layout/layout.h"
#include "common/plan/plan.h"
#include "common/source/open.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

using Json = rapidjson::Writer<rapidjson::StringBuffer>;

struct Loaded {
  std::vector<RankPlan> plans;
  std::vector<std::vector<std::byte>> slabs;
};

absl::StatusOr<Loaded> Load(const std::string& source, const std::string& layout,
                            const std::string& dtype) {
  CKPTD_ASSIGN_OR_RETURN(const CheckpointIndex index, OpenCheckpoint(source));
  CKPTD_ASSIGN_OR_RETURN(const LayoutRules rules, LayoutRules::Parse(layout));
  DtypePolicy policy;
  policy.cast_to = ParseDtype(dtype).value_or(Dtype::kUnspecified);
  Loaded out;
  std::vector<TransferTarget> targets;
  for (uint32_t rank = 0; rank < rules.world_size(); ++rank) {
    CKPTD_ASSIGN_OR_RETURN(const RankLayout wanted, rules.ForRank(index, rank));
    CKPTD_ASSIGN_OR_RETURN(RankPlan plan, PlanRank(index, wanted, policy));
    out.slabs.emplace_back(plan.slab_bytes, std::byte{0xee});
    out.plans.push_back(std::move(plan));
  }
  for (size_t rank = 0; rank < out.plans.size(); ++rank) {
    TransferTarget& target = targets.emplace_back();
    target.plan = &out.plans[rank];
    target.slab.segments = {out.slabs[rank]};
  }
  TransferOptions options;
  options.threads = 1;
  options.digests = false;
  TransferProgress progress(targets.size());
  CKPTD_RETURN_IF_ERROR(RunTransfer(index, targets, options, progress).status());
  return out;
}

void Write(const char* key, std::string_view text, Json& json) {
  json.Key(key);
  json.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

void Write(const char* key, uint64_t number, Json& json) {
  json.Key(key);
  json.Uint64(number);
}

void WriteTable(const RankPlan& plan, Json& json) {
  json.StartArray();
  for (const PlannedTensor& tensor : plan.tensors) {
    json.StartObject();
    Write("name", tensor.name, json);
    Write("dtype", NameOf(tensor.dtype), json);
    Write("offset", tensor.offset, json);
    Write("bytes", tensor.bytes, json);
    json.Key("shape");
    json.StartArray();
    for (const uint64_t size : tensor.shape) json.Uint64(size);
    json.EndArray();
    json.EndObject();
  }
  json.EndArray();
}

void Answer(const std::string& line) {
  const size_t first = line.find('\t');
  const size_t second = line.find('\t', first + 1);
  const auto loaded = Load(line.substr(0, first), line.substr(first + 1, second - first - 1),
                           line.substr(second + 1));
  rapidjson::StringBuffer text;
  Json json(text);
  json.StartObject();
  if (loaded.ok()) {
    json.Key("ranks");
    json.StartArray();
    for (const RankPlan& plan : loaded->plans) WriteTable(plan, json);
    json.EndArray();
    json.Key("slabs");
    json.StartArray();
    for (const auto& slab : loaded->slabs) json.Uint64(slab.size());
    json.EndArray();
  } else {
    Write("error", MessageOf(loaded.status()), json);
  }
  json.EndObject();
  std::cout << text.GetSize() << '\n' << text.GetString();
  if (!loaded.ok()) return;
  for (const auto& slab : loaded->slabs) {
    std::cout.write(reinterpret_cast<const char*>(slab.data()),
                    static_cast<std::streamsize>(slab.size()));
  }
}

}  // namespace
}  // namespace ckptd

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    ckptd::Answer(line);
    std::cout.flush();
  }
  return 0;
}
