// How much host memory a daemon faults in ahead: the value of --arena, or by default what the job
// needed last, or a share of free memory.
#ifndef CKPTD_SERVER_DAEMON_ARENA_DEFAULT_H_
#define CKPTD_SERVER_DAEMON_ARENA_DEFAULT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/daemon/config.h"

namespace ckptd {

inline constexpr char kAutoArena[] = "auto";

struct ArenaFacts {
  uint64_t available = 0;               // bytes of this host or its container
  uint64_t budget = 0;                  // bytes of this daemon
  uint32_t daemons = 1;                 // on this host
  std::optional<uint64_t> loaded = {};  // bytes of the largest shard in the last run of this job
};
struct ArenaSize {
  uint64_t bytes = 0;
  std::string why;         // for people
  bool automatic = false;  // no size was set
};

// The rule of "auto". Pure.
ArenaSize DefaultArena(const ArenaFacts& facts);
// The size that `config` asks for. Errors: CONFIG_INVALID.
absl::StatusOr<ArenaSize> ChooseArena(const Config& config, uint64_t available, uint64_t budget);

// Writes the size of the largest shard into a file of the job's folder, for the next daemon of
// the same rank and world size. Errors: the system's.
absl::Status RememberLoaded(const Config& config, uint64_t bytes);
// None if the file is missing or not plausible.
std::optional<uint64_t> LastLoaded(const Config& config);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_ARENA_DEFAULT_H_
