// What stands still because its storage does not answer: loads and queries whose callers were told
// so, or that others have passed. Each holds a thread and memory until its storage answers, so a
// mount gets few of them.
#ifndef CKPTD_SERVER_LOAD_STORAGE_STALLS_H_
#define CKPTD_SERVER_LOAD_STORAGE_STALLS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/source/access.h"
#include "common/source/storage_watch.h"
#include "server/load/worker.h"
#include "server/protocol/timing.h"

namespace ckptd {

// The mount point of `path`, by its text alone, from a text as /proc/self/mountinfo: storage that
// does not answer is not asked.
std::string MountOf(std::string_view path, std::string_view mountinfo);

// Thread-safe.
class StorageStalls {
 public:
  static constexpr size_t kMostOfMount = 2;

  // A call that lasts for `patience` stands still.
  explicit StorageStalls(StorageWatch::Clock::duration patience = timing::kStorageStill)
      : patience_(patience) {}

  // For a load or query of `source`, which owns it.
  std::shared_ptr<StorageWatch> Watch(const std::string& source);
  // `access`, watched. Errors: Check's.
  absl::StatusOr<SourceAccess> Admit(const std::string& doing, const std::string& source,
                                     SourceAccess access);
  // DeadlineExceeded STORAGE_STALLED, with the file, while `source`, or kMostOfMount others of
  // its mount, stand still.
  absl::Status Check(const std::string& doing, const std::string& source) const;
  // A sentence about memory that loads keep which stand still, and the first one's file. Empty:
  // there are none.
  std::string DescribeHeld() const;

 private:
  // Those that were left behind and stand.
  std::vector<std::shared_ptr<StorageWatch>> Standing() const;

  const StorageWatch::Clock::duration patience_;
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<StorageWatch>> watches_ ABSL_GUARDED_BY(mutex_);
};

// Runs `work` outside of the worker's turn: others pass it once a call to storage has lasted for
// `patience`. A null worker: just runs it.
template <typename Work>
auto RunOutside(Worker* worker, StorageWatch& watch, const Work& work,
                StorageWatch::Clock::duration patience = timing::kStorageStill) -> decltype(work()) {
  if (worker == nullptr) return work();
  const Worker::Outside outside(*worker, [&watch, patience] {
    const bool stands = watch.Oldest(patience).has_value();
    if (stands) watch.LeaveBehind();
    return stands;
  });
  return work();
}

// DeadlineExceeded STORAGE_STALLED: "`doing`: the timeout passed while ..." the file did not answer.
absl::Status StorageStalled(const std::string& doing, const StorageWatch::Stalled& stalled);

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_STORAGE_STALLS_H_
