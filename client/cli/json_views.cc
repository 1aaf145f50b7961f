#include "client/cli/json_views.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "common/checkpoint/path_text.h"

namespace ckptd::cli {
namespace {

// Keeps keys in the order in which they are written here.
using Json = nlohmann::ordered_json;

std::string Dump(const Json& json, int indent = 2) {
  // ASCII only, and bytes that are not UTF-8 are replaced. So this never throws and cannot
  // control a terminal.
  return json.dump(indent, ' ', true, Json::error_handler_t::replace);
}

template <typename Map>
Json MapJson(const Map& map) {
  Json out = Json::object();
  for (const auto& entry : map) out[entry.first] = entry.second;
  return out;
}

Json TimeJson(const std::optional<TimePoint>& time) {
  if (!time.has_value()) return nullptr;
  const auto since = time->time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(since - seconds);
  const std::time_t whole = seconds.count();
  std::tm utc = {};
  ::gmtime_r(&whole, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     millis.count());
}

Json ProgressJson(const LoadProgress& progress) {
  Json stages = Json::array();
  for (const StageTime& stage : progress.stages) {
    stages.push_back({{"stage", NameOf(stage.stage)}, {"seconds", stage.duration.count()}});
  }
  return {{"stage", NameOf(progress.stage)},
          {"bytes_total", progress.bytes_total},
          {"bytes_done", progress.bytes_done},
          {"bytes_per_second", progress.bytes_per_second},
          {"slowest_rank", progress.slowest_rank},
          {"waiting_ranks", progress.waiting_ranks},
          {"conflict", progress.conflict},
          {"storage_bytes", progress.storage_bytes},
          {"mapped_bytes", progress.mapped_bytes},
          {"direct_bytes", progress.direct_bytes},
          {"sent_bytes", progress.sent_bytes},
          {"restored_bytes", progress.restored_bytes},
          {"streamed_ranks", progress.streamed_ranks},
          {"stages", std::move(stages)}};
}

Json FailureJson(const std::optional<LoadFailure>& failure) {
  if (!failure.has_value()) return nullptr;
  return {{"code", absl::StatusCodeToString(failure->code)},
          {"reason", failure->reason},
          {"message", failure->message},
          {"rank", failure->rank}};
}

Json HandleJson(const std::optional<HandleKind>& kind) {
  return kind.has_value() ? Json(NameOf(*kind)) : Json(nullptr);
}

Json CheckpointJson(const CheckpointInfo& checkpoint) {
  return {{"name", checkpoint.name},
          {"source", checkpoint.source},
          {"state", NameOf(checkpoint.state)},
          {"layout", checkpoint.layout},
          {"served_from", checkpoint.served_from},
          {"intended_mode", NameOf(checkpoint.intended_mode)},
          {"handle_kind", HandleJson(checkpoint.handle_kind)},
          {"rank", checkpoint.rank},
          {"world_size", checkpoint.world_size},
          {"epoch", checkpoint.epoch},
          {"slab_bytes", checkpoint.slab_bytes},
          {"tensor_count", checkpoint.tensor_count},
          {"plan_digest", checkpoint.plan_digest},
          {"identity", checkpoint.identity},
          {"source_identity", checkpoint.source_identity},
          {"digests", checkpoint.digests},
          {"pinned", checkpoint.pinned},
          {"lease_count", checkpoint.lease_count},
          {"resident_ranks", checkpoint.resident_ranks},
          {"create_time", TimeJson(checkpoint.create_time)},
          {"active_time", TimeJson(checkpoint.active_time)},
          {"progress", ProgressJson(checkpoint.progress)},
          {"failure", FailureJson(checkpoint.failure)}};
}

Json FilesJson(const std::vector<FileSize>& files, const char* bytes_key) {
  Json out = Json::array();
  for (const FileSize& file : files) out.push_back({{"path", file.path}, {bytes_key, file.bytes}});
  return out;
}

Json MemoryJson(const MemoryInfo& memory) {
  return {{"tier", memory.tier},
          {"why", memory.why},
          {"budget_bytes", memory.budget_bytes},
          {"used_bytes", memory.used_bytes},
          {"arena_bytes", memory.arena_bytes},
          {"arena_target_bytes", memory.arena_target_bytes},
          {"arena_why", memory.arena_why},
          {"huge_page_bytes", memory.huge_page_bytes},
          {"lingering_bytes", memory.lingering_bytes},
          {"device_uuid", memory.device_uuid},
          {"staging_bytes", memory.staging_bytes},
          {"host_tier_bytes", memory.host_tier_bytes},
          {"host_tier_used_bytes", memory.host_tier_used_bytes}};
}

Json MembersJson(const std::vector<MemberInfo>& members) {
  Json out = Json::array();
  for (const MemberInfo& member : members) {
    out.push_back({{"rank", member.rank},
                   {"address", member.address},
                   {"host", member.host},
                   {"pid", member.pid},
                   {"joined", member.joined},
                   {"seconds_since_heartbeat", member.since_heartbeat.count()}});
  }
  return out;
}

}  // namespace

std::string ErrorJson(const absl::Status& status) {
  Facts facts = FactsOf(status);
  if (const auto file = facts.find("file"); file != facts.end()) {
    file->second = TextOfPath(file->second);
  }
  const Json error = {{"code", absl::StatusCodeToString(status.code())},
                      {"reason", ReasonOf(status)},
                      {"message", MessageOf(status)},
                      {"facts", MapJson(facts)}};
  return Dump(Json{{"error", error}}, -1);
}

std::string ToJson(const CheckpointInfo& checkpoint) { return Dump(CheckpointJson(checkpoint)); }

std::string ToJson(const std::vector<CheckpointInfo>& checkpoints) {
  Json out = Json::array();
  for (const CheckpointInfo& checkpoint : checkpoints) out.push_back(CheckpointJson(checkpoint));
  return Dump(Json{{"checkpoints", std::move(out)}});
}

std::string ToJson(const LoadResult& result) {
  return Dump({{"checkpoint", CheckpointJson(result.checkpoint)},
               {"resident", result.resident || !result.checkpoint.served_from.empty()},
               {"differs", result.differs}});
}

std::string ToJson(const SourceInfo& source, bool tensors) {
  Json out = {{"source", source.source},
              {"source_identity", source.identity},
              {"files", FilesJson(source.files, "bytes")},
              {"tensor_count", source.tensor_count},
              {"tensor_bytes", source.tensor_bytes},
              {"metadata", MapJson(source.metadata)},
              {"aliases", MapJson(source.aliases)},
              {"remarks", source.remarks}};
  if (tensors) {
    Json list = Json::array();
    for (const SourceTensor& tensor : source.tensors) {
      list.push_back({{"name", tensor.name},
                      {"dtype", NameOf(tensor.dtype)},
                      {"shape", tensor.shape},
                      {"file", source.files[tensor.file].path},
                      {"offset", tensor.offset},
                      {"bytes", tensor.bytes}});
    }
    out["tensors"] = std::move(list);
  }
  return Dump(out);
}

Json PredictionJson(const LoadPrediction& prediction) {
  Json stages = Json::array();
  for (const ModelStage& stage : prediction.stages) {
    stages.push_back({{"stage", stage.stage},
                      {"where", stage.where},
                      {"bytes", stage.bytes},
                      {"bytes_per_second", stage.rate},
                      {"seconds", stage.seconds}});
  }
  return {{"seconds", prediction.seconds},
          {"comm", prediction.way == ModelWay::kNccl ? "nccl" : "host"},
          {"stages", std::move(stages)}};
}

std::string ToJson(const PlanSummary& plan, const std::vector<std::string>& warnings,
                   const LoadPrediction* prediction) {
  Json ranks = Json::array();
  for (const RankBytes& rank : plan.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"slab_bytes", rank.slab_bytes},
                     {"tensor_bytes", rank.tensor_bytes},
                     {"tensor_count", rank.tensor_count},
                     {"received_bytes", rank.received_bytes}});
  }
  Json out = {{"ranks", std::move(ranks)},
              {"files", FilesJson(plan.files, "read_bytes")},
              {"storage_bytes", plan.storage_bytes},
              {"peak_rank_bytes", plan.peak_rank_bytes},
              {"total_slab_bytes", plan.total_slab_bytes},
              {"distinct_bytes", plan.distinct_bytes},
              {"plan_digest", plan.plan_digest},
              {"warnings", warnings}};
  if (prediction != nullptr) out["prediction"] = PredictionJson(*prediction);
  return Dump(out);
}

// A GPU is a number, as in accelerate's maps.
Json DeviceJson(const std::string& device) {
  if (device == "cpu" || device == "disk") return device;
  return std::stoul(device);
}

std::string ToJson(const DeviceMap& map) {
  Json entries = Json::object();
  Json modules = Json::array();
  for (const PlacedModule& module : map.modules) {
    entries[module.name] = DeviceJson(module.device);
    modules.push_back({{"name", module.name},
                       {"device", DeviceJson(module.device)},
                       {"bytes", module.bytes}});
  }
  Json devices = Json::array();
  for (const PlacedDevice& device : map.devices) {
    devices.push_back({{"device", DeviceJson(device.device)}, {"placed_bytes", device.placed_bytes}});
    if (device.device != "disk") devices.back()["limit_bytes"] = device.limit_bytes;
  }
  return Dump({{"device_map", std::move(entries)},
               {"modules", std::move(modules)},
               {"devices", std::move(devices)},
               {"total_bytes", map.total_bytes},
               {"largest_layer_bytes", map.largest_layer_bytes},
               {"warnings", map.warnings}});
}

std::string ToJson(const VerifyResult& result, const std::string& what, const std::string& how,
                   const std::vector<ManifestDifference>& differences,
                   const std::vector<std::string>& remarks) {
  Json found = Json::array();
  for (const ManifestDifference& one : differences) {
    found.push_back({{"tensor", one.tensor}, {"file", one.file}, {"what", one.what}});
  }
  return Dump({{"verified", what},
               {"method", how},
               {"ok", result.mismatched.empty()},
               {"rank", result.rank},
               {"tensor_count", result.tensor_count},
               {"bytes", result.bytes},
               {"mismatched", result.mismatched},
               {"differences", std::move(found)},
               {"remarks", remarks}});
}

std::string ToJson(const std::vector<RankLease>& leases) {
  Json out = Json::array();
  for (const auto& [rank, lease] : leases) {
    out.push_back({{"name", lease.name},
                   {"checkpoint", lease.checkpoint},
                   {"mode", NameOf(lease.mode)},
                   {"pid", lease.pid},
                   {"uid", lease.uid},
                   {"connected", lease.connected},
                   {"create_time", TimeJson(lease.create_time)}});
    if (rank.has_value()) out.back()["rank"] = *rank;
  }
  return Dump(Json{{"leases", std::move(out)}});
}

std::string ToJson(const DaemonInfo& info) {
  return Dump({{"version", info.version},
               {"job", info.job},
               {"rank", info.rank},
               {"world_size", info.world_size},
               {"epoch", info.epoch},
               {"pid", info.pid},
               {"start_time", TimeJson(info.start_time)},
               {"state", info.state},
               {"detail", info.detail},
               {"memory", MemoryJson(info.memory)},
               {"members", MembersJson(info.members)},
               {"workload_socket", info.workload_socket},
               {"fd_socket", info.fd_socket},
               {"peer_address", info.peer_address},
               {"checkpoint_count", info.checkpoint_count},
               {"lease_count", info.lease_count},
               {"config", MapJson(info.config)}});
}

std::string ToJson(const std::vector<JsonField>& fields) {
  Json out = Json::object();
  for (const JsonField& field : fields) {
    switch (field.kind) {
      case JsonField::Kind::kText:
        out[field.key] = field.text;
        break;
      case JsonField::Kind::kNumber:
        out[field.key] = field.number;
        break;
      case JsonField::Kind::kBool:
        out[field.key] = field.number != 0;
        break;
    }
  }
  return Dump(out);
}

}  // namespace ckptd::cli
