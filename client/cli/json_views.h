// JSON for programs: exact integers, snake_case keys as in the API, ASCII only (everything else
// escaped). Indented by two, no newline at the end.
#ifndef CKPTD_CLIENT_CLI_JSON_VIEWS_H_
#define CKPTD_CLIENT_CLI_JSON_VIEWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/cpp/types.h"
#include "common/checkpoint/manifest.h"
#include "common/devices/device_map.h"
#include "common/devices/load_model.h"

namespace ckptd::cli {

// {"error": {code, reason, message, facts}} on one line.
std::string ErrorJson(const absl::Status& status);

std::string ToJson(const CheckpointInfo& checkpoint);
std::string ToJson(const std::vector<CheckpointInfo>& checkpoints);
std::string ToJson(const LoadResult& result);
// `tensors`: whether to include the table.
std::string ToJson(const SourceInfo& source, bool tensors);
// `prediction` may be null.
std::string ToJson(const PlanSummary& plan, const std::vector<std::string>& warnings,
                   const LoadPrediction* prediction);
std::string ToJson(const DeviceMap& map);
std::string ToJson(const VerifyResult& result, const std::string& what, const std::string& how,
                   const std::vector<ManifestDifference>& differences,
                   const std::vector<std::string>& remarks);
// A lease, and its rank if leases of several ranks are listed.
struct RankLease {
  std::optional<uint32_t> rank;
  LeaseInfo lease;
};
std::string ToJson(const std::vector<RankLease>& leases);
std::string ToJson(const DaemonInfo& info);

// Makes a flat object. Values that are numbers in the API become numbers.
struct JsonField {
  std::string key;
  std::string text;
  uint64_t number = 0;
  enum class Kind { kText, kNumber, kBool } kind = Kind::kText;
};
std::string ToJson(const std::vector<JsonField>& fields);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_JSON_VIEWS_H_
