// Sizes as people write them in flags and in the config file.
#ifndef CKPTD_SERVER_DAEMON_SIZES_H_
#define CKPTD_SERVER_DAEMON_SIZES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// Bytes from "16GiB", "2.5 GB", "800M" (decimal), "4096". Errors: InvalidArgument CONFIG_INVALID.
absl::StatusOr<uint64_t> ParseBytes(const std::string& text);
// As ParseBytes, or "80%" of `whole` bytes.
absl::StatusOr<uint64_t> ParseShare(const std::string& text, uint64_t whole);

// As ParseShare, for a daemon whose predecessor has left `kept` bytes: they are not among those that
// are `free`, and belong to the whole. A share is never less, for others may have taken what was
// free meanwhile.
absl::StatusOr<uint64_t> ParseBudget(const std::string& text, uint64_t free, uint64_t kept);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_SIZES_H_
