#include "client/cli/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "client/cli/json.h"
#include "client/cli/local_ranks.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/request_text.h"

namespace ckptd::cli {
namespace {

constexpr char kUsage[] = "USAGE";
constexpr Timeout kMaxTimeout{24LL * 3600 * 1000};
constexpr Timeout kCallTimeout{30'000};
// How long rank 0 may take to say how many ranks there are, after another rank's daemon could not
// be reached.
constexpr Timeout kFirstTimeout{2'000};

// The rank that is meant if nothing names one and rank 0 has no socket on this host.
std::optional<uint32_t> LowestRankHere(const AddressQuery& query) {
  const Environment environment = ProcessEnvironment();
  if (query.rank.has_value() || environment("RANK") || environment("SLURM_PROCID")) return {};
  const absl::StatusOr<Address> address = ResolveAddress(query, environment);
  if (!address.ok() || address->chosen_by != "the default") return {};
  const std::set<uint32_t> here = RanksIn(std::filesystem::path(address->path).parent_path());
  return here.empty() || *here.begin() == 0 ? std::nullopt : std::optional(*here.begin());
}

// An invalid address came from options or variables, so it is a usage error.
absl::Status AsUsageError(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? UsageError(MessageOf(status)) : status;
}

}  // namespace

Timeout Context::TimeoutOr(Timeout fallback) const {
  return globals.timeout.empty() ? fallback : ParseTimeout(globals.timeout).value_or(fallback);
}

ConnectOptions Context::ToConnectOptions() const {
  ConnectOptions options;
  options.address.argument = globals.address;
  options.address.rank = globals.rank;
  options.address.job = globals.job;
  if (const auto lowest = LowestRankHere(options.address)) {
    if (!std::exchange(*chosen_noted_, true)) {
      Note(fmt::format("rank 0 is on another host; this is about rank {}", *lowest));
    }
    options.address.rank = lowest;
  }
  options.call_timeout = TimeoutOr(kCallTimeout);
  options.connect_timeout = std::min(options.connect_timeout, options.call_timeout);
  return options;
}

absl::StatusOr<Client> Context::Connect() const {
  absl::StatusOr<Client> client = Client::Connect(ToConnectOptions());
  if (!client.ok()) return NotConnected(client.status());
  return client;
}

absl::StatusOr<AdminClient> Context::ConnectAdmin() const {
  absl::StatusOr<AdminClient> admin = AdminClient::Connect(ToConnectOptions());
  if (!admin.ok()) return NotConnected(admin.status());
  return admin;
}

absl::StatusOr<Address> Context::ResolvedAddress() const {
  const absl::StatusOr<Address> address =
      ResolveAddress(ToConnectOptions().address, ProcessEnvironment());
  if (!address.ok()) return AsUsageError(address.status());
  return address;
}

absl::Status Context::NotConnected(const absl::Status& status) const {
  if (globals.rank.value_or(0) == 0 || ReasonOf(status) != reason::kDaemonUnreachable) {
    return AsUsageError(status);
  }
  ConnectOptions first = ToConnectOptions();
  first.address.rank = 0;
  first.connect_timeout = std::min(first.connect_timeout, kFirstTimeout);
  first.call_timeout = std::min(first.call_timeout, kFirstTimeout);
  absl::StatusOr<AdminClient> admin = AdminClient::Connect(first);
  if (!admin.ok()) return status;
  const auto info = admin->Info();
  if (!info.ok() || *globals.rank < static_cast<uint32_t>(info->world_size())) return status;
  return UsageError(fmt::format("--rank {}: the group of job {} has ranks 0 to {}", *globals.rank,
                                info->job(), info->world_size() - 1));
}

void Context::Note(std::string_view text) const {
  if (!globals.quiet) io.err << "ckptctl: " << Escape(text) << '\n';
}

void Context::PrintError(const absl::Status& status) const {
  if (json()) {
    io.err << ErrorJson(status) << '\n';
  } else {
    io.err << "ckptctl: " << Escape(MessageOf(status)) << '\n';
  }
}

absl::Status UsageError(std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, kUsage, message);
}

bool IsUsageError(const absl::Status& status) { return ReasonOf(status) == kUsage; }

absl::StatusOr<Timeout> ParseTimeout(std::string_view text) {
  uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit = text.substr(static_cast<size_t>(parsed.ptr - text.data()));
  uint64_t factor = 0;
  if (unit.empty() || unit == "s") factor = 1000;
  if (unit == "ms") factor = 1;
  if (unit == "m") factor = 60'000;
  if (unit == "h") factor = 3'600'000;
  const auto most = static_cast<uint64_t>(kMaxTimeout.count());
  if (parsed.ec != std::errc() || factor == 0 || value == 0 || value > most / factor) {
    return UsageError(fmt::format(
        "reading the duration {}: expected a number up to 24 hours with ms, s, m or h, as in 90s",
        text));
  }
  return Timeout(value * factor);
}

absl::StatusOr<std::string> ReadLayout(const std::string& argument) {
  if (argument.empty()) {
    return UsageError("reading the layout: there is none; give fsdp:N, hsdp:RxS, replicate:N or a "
                      "file, as in --layout fsdp:4");
  }
  return ckptd::ReadLayout(argument);
}

absl::StatusOr<DtypePolicy> ToDtypePolicy(const std::string& dtype,
                                          const std::vector<std::string>& keep_f32) {
  DtypePolicy policy;
  policy.keep_f32 = keep_f32;
  if (dtype.empty()) return policy;
  const std::optional<Dtype> parsed = ParseCastDtype(dtype);
  if (!parsed.has_value()) {
    return UsageError(fmt::format("reading --dtype {}: a load can cast to F16, BF16, F32 and F64",
                                  dtype));
  }
  policy.cast_to = *parsed;
  return policy;
}

}  // namespace ckptd::cli
