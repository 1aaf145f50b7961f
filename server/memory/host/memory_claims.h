// Lets the daemons of one host tell each other how much memory they are about to fault in. All of
// them see the same free memory. If several looked at the same moment and then faulted memory in,
// each would find enough, and the kernel would kill them together. So a daemon claims memory
// before it faults it in, and claimed memory does not count as free.
//
// Claims are locks on ranges of a file that the daemons share; a lock is as long as the claim.
// The kernel removes the locks of a process that ends, however it ends. The file exists only while
// there are claims. It holds the name of the one that is claiming at the moment.
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

// Bytes that others leave alone until this object ends. Not thread-safe.
class MemoryClaim {
 public:
  MemoryClaim() = default;  // claims nothing
  MemoryClaim(MemoryClaim&&) noexcept = default;
  MemoryClaim& operator=(MemoryClaim&& other) noexcept;
  ~MemoryClaim() { End(); }

  // Lowers the claim to the bytes that are still to be faulted in. Otherwise memory that the
  // system has already given would be counted twice. Does not wait.
  void Lower(uint64_t bytes);

 private:
  friend class MemoryClaims;
  MemoryClaim(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  bool LockSlot(uint64_t bytes);
  void End();

  UniqueFd file_;
  std::string path_;
  int64_t slot_ = 0;  // where its range begins
};

// Thread-safe. Arena owns it; claims may outlive it.
class MemoryClaims {
 public:
  // Bytes that the system has. Called while no other daemon can claim, so it must be fast and
  // take no lock of ours.
  using Available = std::function<absl::StatusOr<uint64_t>()>;
  struct Answer {
    uint64_t available = 0;            // bytes that the system has
    uint64_t claimed = 0;              // bytes that others claim; may be more than `available`
    std::optional<MemoryClaim> claim;  // none: the bytes do not suffice
  };

  // The daemons of a host must use the same path, in a folder that only their user can enter. If
  // it is empty, or the file or its locks are not available, claims are not compared. `holder` is
  // what the others call this daemon when they have waited for it, such as "rank 2 (process 7)".
  MemoryClaims(std::string path, std::string holder, Available available,
               std::chrono::nanoseconds patience = std::chrono::seconds(10));
  // Removes the file that a killed process left.
  ~MemoryClaims();
  MemoryClaims(const MemoryClaims&) = delete;
  MemoryClaims& operator=(const MemoryClaims&) = delete;

  // Claims `bytes` if the system has them and `spare` more, besides what others claim. Waits for
  // others that are claiming, which takes them a fraction of a millisecond. A daemon that was
  // stopped at that moment may have decided already. To go on without its claim could get both
  // killed, so after `patience` this returns DeadlineExceeded DEADLINE, which names it. Other errors:
  // those of Available.
  absl::StatusOr<Answer> Claim(uint64_t bytes, uint64_t spare = 0) const;

 private:
  const std::string path_;
  const std::string holder_;
  const Available available_;
  const std::chrono::nanoseconds patience_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_MEMORY_CLAIMS_H_
