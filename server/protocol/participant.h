// A client's part in a load that all ranks make. Plain values.
#ifndef CKPTD_SERVER_PROTOCOL_PARTICIPANT_H_
#define CKPTD_SERVER_PROTOCOL_PARTICIPANT_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace ckptd {

// The most participants of one rank at once.
constexpr size_t kMostParticipants = 32;

struct Participant {
  enum class State : uint8_t { kLoading, kPlaced, kFailed };

  std::string id;
  // The load that it takes part in, in the client's spelling and without symbolic links. Hosts
  // may link differently, and clients spell differently: the same where one of the two is equal.
  std::string source;
  std::string real_source;
  // Tells its job from others that use the same daemons; empty: not known.
  std::string job = {};
  std::optional<uid_t> guest = {};  // a guest's user; unset: a client whom the daemons trust
  uint32_t pid = 0;
  // It waits until every rank has placed its shard.
  bool barrier = false;
  // All at the moment that this was told.
  std::chrono::nanoseconds process_age{0};
  std::chrono::nanoseconds age{0};        // since it joined
  std::chrono::nanoseconds ended_age{0};  // since it placed or failed
  std::chrono::nanoseconds time_left = std::chrono::minutes(10);
  State state = State::kLoading;
  absl::Status failure = {};  // when kFailed
};

// Whether both jobs are known, and differ. Participants of two users are always of two jobs.
inline bool OfDifferentJobs(const Participant& a, const Participant& b) {
  return a.guest != b.guest || (!a.job.empty() && !b.job.empty() && a.job != b.job);
}

// How the load has ended for a participant. OK: every rank has placed its shard.
struct Verdict {
  std::string id;
  absl::Status status;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_PROTOCOL_PARTICIPANT_H_
