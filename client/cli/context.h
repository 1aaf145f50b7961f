// What every verb uses: global options, streams, and how results and errors are printed.
#ifndef CKPTD_CLIENT_CLI_CONTEXT_H_
#define CKPTD_CLIENT_CLI_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/io.h"
#include "client/cpp/admin.h"
#include "client/cpp/client.h"

namespace ckptd::cli {

struct Globals {
  std::string address;
  std::optional<uint32_t> rank;
  std::string job;
  std::string timeout;  // as given; empty: the default of each verb
  std::string output = "table";
  bool quiet = false;
};

struct Context {
  explicit Context(Io& streams) : io(streams) {}

  bool json() const { return globals.output == "json"; }
  // The --timeout given, or `fallback`.
  Timeout TimeoutOr(Timeout fallback) const;
  // If nothing names a daemon, it is rank 0's, or that of the lowest rank on this host. If it cannot
  // be reached: a usage error if its group has no such --rank.
  absl::StatusOr<Client> Connect() const;
  absl::StatusOr<AdminClient> ConnectAdmin() const;
  // Address of the chosen daemon.
  absl::StatusOr<Address> ResolvedAddress() const;
  // Prints a remark for people on stderr. Not with --quiet.
  void Note(std::string_view text) const;
  // Prints one sentence on stderr, or {"error": ...} with --output json.
  void PrintError(const absl::Status& status) const;

  Io& io;
  Globals globals;
  // Set by the chosen verb. Its result is the exit code.
  std::function<absl::StatusOr<int>()> action;

 private:
  ConnectOptions ToConnectOptions() const;
  // Whether it was said which rank is meant. One for all copies of this context.
  std::shared_ptr<bool> chosen_noted_ = std::make_shared<bool>(false);
  // The error to print if connecting has failed with `status`.
  absl::Status NotConnected(const absl::Status& status) const;
};

// The error for options that contradict each other: exit code 2.
absl::Status UsageError(std::string_view message);
bool IsUsageError(const absl::Status& status);

// "30", "30s", "500ms", "5m", "2h": more than 0, at most 24 hours.
absl::StatusOr<Timeout> ParseTimeout(std::string_view text);

// The text of a layout from the option's value: a short form, inline JSON, a file's name, or
// @file.
absl::StatusOr<std::string> ReadLayout(const std::string& argument);

// Combines the options --dtype and --keep-fp32.
absl::StatusOr<DtypePolicy> ToDtypePolicy(const std::string& dtype,
                                          const std::vector<std::string>& keep_f32);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_CONTEXT_H_
