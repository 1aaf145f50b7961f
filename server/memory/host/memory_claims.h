// Lets the daemons of one host tell each other how much memory they are about to fault in. All of
// them see the same free memory. If several looked at the same moment and then faulted memory in,
// each would find enough, and the kernel would kill them together. So a daemon claims memory
// before it faults it in, and claimed memory does not count as free. A claim counts against the
// machine and against each control group that limits the claiming process: daemons of other groups
// share the machine with it and nothing else.
//
// Claims are locks on ranges of files that the daemons share, one for each of those levels; a lock
// is as long as the claim. The kernel removes the locks of a process that ends, however it ends. The
// files exist only while there are claims. The machine's holds the name of the one that is claiming
// at the moment.
#ifndef CKPTD_SERVER_MEMORY_HOST_MEMORY_CLAIMS_H_
#define CKPTD_SERVER_MEMORY_HOST_MEMORY_CLAIMS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "server/memory/host/available_memory.h"

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
  // The file of one level. Invalid: claims of that level are not compared.
  struct Part {
    UniqueFd file;
    std::string path;
    int64_t slot = 0;  // where its range begins
  };
  bool LockSlots(uint64_t bytes);
  std::vector<uint64_t> ClaimedBesides() const;  // by others, for each part
  void End();

  std::vector<Part> parts_;  // the machine's first
};

// Thread-safe. Arena owns it; claims may outlive it.
class MemoryClaims {
 public:
  // What the machine and its groups have (MemoryLevels). Called while no other daemon can claim, so
  // it must be fast and take no lock of ours. May be called a second time.
  using Levels = std::function<absl::StatusOr<std::vector<MemoryLevel>>()>;
  // For a machine without groups: its bytes that are left.
  using Available = std::function<absl::StatusOr<uint64_t>()>;
  static Levels OfMachine(Available available);
  // These are the numbers of the level that decides: it has too little, or comes closest to that.
  struct Answer {
    uint64_t available = 0;            // bytes that the system has
    uint64_t claimed = 0;              // bytes that others claim; may be more than `available`
    std::optional<MemoryClaim> claim;  // none: the bytes do not suffice
  };

  // The daemons of a host must use the same path, in a folder that only their user can enter. Files
  // of groups lie beside it. If it is empty, or a file or its locks are not available, claims are
  // not compared. `holder` is what the others call this daemon when they have waited for it, such as
  // "rank 2 (process 7)".
  MemoryClaims(std::string path, std::string holder, Levels levels,
               std::chrono::nanoseconds patience = std::chrono::seconds(10));
  // Removes the file that a killed process left.
  ~MemoryClaims();
  MemoryClaims(const MemoryClaims&) = delete;
  MemoryClaims& operator=(const MemoryClaims&) = delete;

  // Claims `bytes` if the system has them and `spare` more, besides what others claim. Waits for
  // others that are claiming, which takes them a fraction of a millisecond. A daemon that was
  // stopped at that moment may have decided already. To go on without its claim could get both
  // killed, so after `patience` this returns DeadlineExceeded DEADLINE, which names it. Other errors:
  // those of Levels.
  absl::StatusOr<Answer> Claim(uint64_t bytes, uint64_t spare = 0) const;

 private:
  bool HasOpen(const MemoryClaim& claim, const std::vector<MemoryLevel>& levels) const;
  void OpenAll(const std::vector<MemoryLevel>& levels, MemoryClaim& claim) const;
  // Opens the files of the levels for `claim`, whose first one is locked, and says which decides.
  absl::StatusOr<Answer> Look(uint64_t need, MemoryClaim& claim) const;

  const std::string path_;
  const std::string holder_;
  const Levels levels_;
  const std::chrono::nanoseconds patience_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_MEMORY_CLAIMS_H_
