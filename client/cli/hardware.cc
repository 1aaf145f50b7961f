#include "client/cli/hardware.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <rapidjson/document.h>

#include <array>

#include "client/cli/context.h"
#include "common/base/json.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

constexpr double kGB = 1e9;
constexpr size_t kMaxFileBytes = 64 << 10;

struct Known {
  const char* name;
  uint32_t gpus_per_host;
  // GB/s
  double storage, memory, link, links, fabric, network, streams;
};

// Local NVMe, eight readers, PCIe 4 or 5 x16, and one adapter of 200 or 400 Gb/s per GPU.
constexpr Known kKnown[] = {
    {"a100x8", 8, 12, 60, 25, 120, 240, 180, 5},   {"h100x8", 8, 12, 80, 55, 240, 350, 360, 5},
    {"h200x8", 8, 12, 80, 55, 240, 350, 360, 5},   {"b200x8", 8, 24, 80, 55, 240, 700, 360, 5},
    {"h200x1", 1, 12, 80, 55, 55, 0, 45, 5},
};

Hardware ToHardware(const Known& known) {
  Hardware out;
  out.name = known.name;
  out.gpus_per_host = known.gpus_per_host;
  out.storage = known.storage * kGB;
  out.memory = known.memory * kGB;
  out.link = known.link * kGB;
  out.links = known.links * kGB;
  out.fabric = known.fabric * kGB;
  out.network = known.network * kGB;
  out.streams = known.streams * kGB;
  return out;
}

struct Field {
  const char* key;
  double Hardware::*rate;
};
constexpr std::array<Field, 8> kFields = {{{"storage", &Hardware::storage},
                                           {"shared_storage", &Hardware::shared_storage},
                                           {"memory", &Hardware::memory},
                                           {"link", &Hardware::link},
                                           {"links", &Hardware::links},
                                           {"fabric", &Hardware::fabric},
                                           {"network", &Hardware::network},
                                           {"streams", &Hardware::streams}}};

absl::Status Refuse(const std::string& file, const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("reading the hardware of {}: {}", file, why));
}

absl::Status TakeField(std::string_view key, const rapidjson::Value& value, const std::string& file,
                       Hardware& out) {
  if (key == "description") return absl::OkStatus();
  if (key == "gpus_per_host") {
    if (!value.IsUint() || value.GetUint() == 0 || value.GetUint() > 1024) {
      return Refuse(file, "gpus_per_host is a number from 1 to 1024");
    }
    out.gpus_per_host = value.GetUint();
    return absl::OkStatus();
  }
  const bool fixed = key == "fixed_seconds";
  double Hardware::*target = fixed ? &Hardware::fixed_seconds : nullptr;
  for (const Field& field : kFields) {
    if (key == field.key) target = field.rate;
  }
  if (target == nullptr) {
    return Refuse(file, fmt::format("it has no field \"{}\"; known are gpus_per_host, "
                                    "fixed_seconds, storage, shared_storage, memory, link, links, "
                                    "fabric, network and streams, in GB/s",
                                    key));
  }
  if (!value.IsNumber() || !(value.GetDouble() >= 0) || value.GetDouble() > 1e6) {
    return Refuse(file, fmt::format("{} is a number from 0 to 1000000", key));
  }
  out.*target = value.GetDouble() * (fixed ? 1 : kGB);
  return absl::OkStatus();
}

absl::StatusOr<Hardware> ReadHardware(const std::string& file) {
  CKPTD_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(file, kMaxFileBytes));
  rapidjson::Document parsed;
  if (const auto fault = ParseJson(text, JsonNumbers::kExact, parsed); fault.has_value()) {
    return Refuse(file, fmt::format("it is no JSON, or has a number of more than 24 characters, near "
                                    "byte {}",
                                    *fault));
  }
  if (!parsed.IsObject()) return Refuse(file, "it holds no JSON object");
  Hardware out;
  out.name = file;
  for (const auto& member : parsed.GetObject()) {
    const std::string_view key(member.name.GetString(), member.name.GetStringLength());
    CKPTD_RETURN_IF_ERROR(TakeField(key, member.value, file, out));
  }
  return out;
}

}  // namespace

std::vector<std::string> HardwareNames() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) names.emplace_back(known.name);
  return names;
}

absl::StatusOr<Hardware> FindHardware(const std::string& name_or_file) {
  for (const Known& known : kKnown) {
    if (name_or_file == known.name) return ToHardware(known);
  }
  if (name_or_file.find('.') != std::string::npos || name_or_file.find('/') != std::string::npos) {
    return ReadHardware(name_or_file);
  }
  return UsageError(fmt::format("looking for the hardware {}: known are {}; a file (FILE.json) may "
                                "describe another",
                                name_or_file, fmt::join(HardwareNames(), ", ")));
}

}  // namespace ckptd::cli
