// What the daemons of one host are about to take from the system, told to each other. All
// of them see the same free memory: those that look at one moment and then fault memory in
// would all find enough, and be killed together. So whoever is about to fault memory in
// claims it, and what others claim is not free.
//
// Claims are locks on ranges of a file that the daemons share, as long as the claims are:
// the kernel lets go of them when a process ends, however that is, and the file stays
// empty. It is there only while there are claims.
#ifndef CKPTD_SERVER_MEMORY_HOST_MEMORY_CLAIMS_H_
#define CKPTD_SERVER_MEMORY_HOST_MEMORY_CLAIMS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

// Bytes that others leave alone, until its end. Not thread-safe.
class MemoryClaim {
 public:
  MemoryClaim() = default;  // of nothing
  MemoryClaim(MemoryClaim&&) noexcept = default;
  MemoryClaim& operator=(MemoryClaim&& other) noexcept;
  ~MemoryClaim() { End(); }

  // So much is still to be faulted in: what the system has lost already would be counted
  // twice. Does not wait.
  void Lower(uint64_t bytes);

 private:
  friend class MemoryClaims;
  MemoryClaim(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  bool Enter(uint64_t bytes);
  void End();

  UniqueFd file_;
  std::string path_;
  int64_t slot_ = 0;  // where its range begins
};

// Thread-safe; claims may outlive it.
class MemoryClaims {
 public:
  // Bytes that the system has. Called while no other daemon can claim: it takes no lock of
  // ours, and little time.
  using Available = std::function<absl::StatusOr<uint64_t>()>;
  struct Answer {
    uint64_t available = 0;            // bytes that the system has
    uint64_t claimed = 0;              // of which others claim, or more than there are
    std::optional<MemoryClaim> claim;  // none: they are too few
  };

  // The daemons of a host use the same path, in a folder that only their user can enter.
  // Where it is empty, or the file or its locks cannot be had, claims are not compared:
  // there may be enough for all.
  MemoryClaims(std::string path, Available available,
               std::chrono::nanoseconds patience = std::chrono::seconds(10));
  // Removes the file that a killed process left.
  ~MemoryClaims();
  MemoryClaims(const MemoryClaims&) = delete;
  MemoryClaims& operator=(const MemoryClaims&) = delete;

  // Claims `bytes` if the system has them and `spare` more beside what others claim. Waits
  // for others that are just claiming, which takes them a fraction of a millisecond. One
  // that was stopped in that moment has decided already, nobody knows what: to go on without it
  // could be what kills both, so after `patience` this is DeadlineExceeded DEADLINE. Other
  // errors: those of Available.
  absl::StatusOr<Answer> Claim(uint64_t bytes, uint64_t spare = 0) const;

 private:
  const std::string path_;
  const Available available_;
  const std::chrono::nanoseconds patience_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_MEMORY_CLAIMS_H_
