// Small write-once values shared by the group, held by the leader: rendezvous
// for whatever must be agreed on before a collective. Thread-safe.
#ifndef CKPTD_SERVER_CORE_KEY_VALUE_H_
#define CKPTD_SERVER_CORE_KEY_VALUE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/core/domain.h"

namespace ckptd {

class KeyValueStore {
 public:
  static constexpr size_t kMaxKeyBytes = 256;
  static constexpr size_t kMaxValueBytes = 64 * 1024;
  static constexpr size_t kMaxKeys = 4096;

  // The value the key has now: the first one put. Errors: InvalidArgument past
  // a limit, ResourceExhausted when the store is full.
  absl::StatusOr<std::string> Put(const std::string& key, const std::string& value);
  // Waits for the key. Errors: DeadlineExceeded naming the key, DRAINING.
  absl::StatusOr<std::string> Get(const std::string& key, Deadline deadline) const;
  // Forgets everything and wakes waiters at their deadline (a new epoch).
  void Clear();
  // Ends all waiting, now and later: the daemon stops.
  void Stop();

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CORE_KEY_VALUE_H_
