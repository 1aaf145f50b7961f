// systemd's store of descriptors (sd_pid_notify_with_fds(3), FDSTORE=1) in place of a keeper: for a
// unit with FileDescriptorStoreMax=. Descriptor i of an entry has the name ENTRY#i there. systemd
// drops a connection by itself when its other side has closed.
#ifndef CKPTD_SERVER_KEEPER_SYSTEMD_STORE_H_
#define CKPTD_SERVER_KEEPER_SYSTEMD_STORE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/keeper/descriptor_store.h"

namespace ckptd {

class SystemdStore final : public DescriptorStore {
 public:
  using Environment = std::function<std::optional<std::string>(const char* name)>;
  // Owns the descriptors that systemd has passed to this process, from `first` on (LISTEN_FDS,
  // LISTEN_FDNAMES). Once, and before a child is started. Errors: FailedPrecondition
  // CONFIG_INVALID if this process is no unit of systemd's.
  static absl::StatusOr<std::unique_ptr<SystemdStore>> Take(const Environment& read, int first = 3);

  absl::StatusOr<StoredEntries> Entries() override;
  void Put(const std::string& name, std::vector<UniqueFd> fds) override;
  void Remove(const std::string& name) override;
  std::string endpoint() const override { return "systemd"; }
  bool connected() const override { return true; }

 private:
  explicit SystemdStore(std::string socket) : socket_(std::move(socket)) {}
  void RemoveLocked(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Notify(const std::string& text, int fd) const;
  // Returns when systemd has read all that was sent.
  absl::Status Barrier() const;

  const std::string socket_;
  mutable Mutex mutex_;
  StoredEntries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_KEEPER_SYSTEMD_STORE_H_
