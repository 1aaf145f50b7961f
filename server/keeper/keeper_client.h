// A daemon's side of the keeper. Holds all that it has put, so that a keeper that was restarted is
// filled again; a thread sees to that.
#ifndef CKPTD_SERVER_KEEPER_KEEPER_CLIENT_H_
#define CKPTD_SERVER_KEEPER_KEEPER_CLIENT_H_

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/keeper.pb.h"
#include "common/base/fd_passing.h"
#include "common/base/mutex.h"
#include "server/keeper/descriptor_store.h"

namespace ckptd {

// Connects as a packet socket. Asks no hello: for a supervisor, whose connection tells by its end
// that the keeper has ended. Errors: ConnectUnix's; PermissionDenied CONFIG_INVALID if another user
// listens there, who would get the memory of shards.
absl::StatusOr<UniqueFd> ConnectToKeeper(const std::string& path, Deadline deadline);
// Ends the keeper. Best effort.
void EndKeeper(int connection, Deadline deadline);

class KeeperClient final : public DescriptorStore {
 public:
  // Takes what an earlier process has left under that owner. Waits `patience` for a keeper; without
  // one it begins empty, and is connected later.
  static std::unique_ptr<KeeperClient> Start(std::string path, std::string owner,
                                             std::chrono::milliseconds patience);
  ~KeeperClient() override;
  KeeperClient(const KeeperClient&) = delete;
  KeeperClient& operator=(const KeeperClient&) = delete;

  absl::StatusOr<StoredEntries> Entries() override;
  void Put(const std::string& name, std::vector<UniqueFd> fds) override;
  void Remove(const std::string& name) override;
  std::string endpoint() const override { return path_; }
  bool connected() const override;

 private:
  KeeperClient(std::string path, std::string owner)
      : path_(std::move(path)), owner_(std::move(owner)) {}
  absl::Status PutNow(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Ask(const v1::KeeperRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Answer(Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Closes the connection if `status` says that it is of no use any more.
  void Note(const absl::Status& status, const std::string& doing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch();
  // Connects to a keeper and puts everything.
  void Refill();

  const std::string path_;
  const std::string owner_;
  mutable Mutex mutex_;
  CondVar changed_;
  UniqueFd socket_ ABSL_GUARDED_BY(mutex_);  // invalid: not connected
  StoredEntries entries_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_KEEPER_KEEPER_CLIENT_H_
