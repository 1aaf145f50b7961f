// Hands the work items of a transfer to its threads in file order. Makes windows when they are
// needed: the next one while threads work on the current one.
#ifndef CKPTD_SERVER_TRANSFER_WINDOW_QUEUE_H_
#define CKPTD_SERVER_TRANSFER_WINDOW_QUEUE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/transfer/slab_map.h"
#include "server/transfer/source_files.h"
#include "server/transfer/transfer_types.h"
#include "server/transfer/window.h"

namespace ckptd {

// Each transfer owns one. Thread-safe. The constructor's arguments must outlive it.
class WindowQueue {
 public:
  // `slabs` belong to the targets whose memory is here.
  WindowQueue(const WindowSource& source, const TransferOptions& options,
              std::span<const SlabMap> slabs, SourceFiles& files);

  struct Claimed {
    std::shared_ptr<TransferWindow> window;  // null: nothing is left
    std::span<const WorkItem> items;         // empty: the window has no items and is done
  };
  // Up to `most` items that follow each other, at least one. Together they have at most the bytes
  // of that many items of kItemBytes. Errors: those of BuildSchedule. After an error all threads
  // get it.
  absl::StatusOr<Claimed> Next(size_t most);

  // Makes the first window. Tells how many items it has, and whether it is the only one.
  struct First {
    size_t items = 0;
    bool only = false;
  };
  absl::StatusOr<First> Start();

 private:
  // The part of a window that this process does.
  struct Share {
    size_t window = 0;
    ItemShare items;
  };

  absl::StatusOr<std::shared_ptr<TransferWindow>> Make(const Share& share) const;
  // Makes the next window. Releases the lock meanwhile.
  void MakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const WindowSource& source_;
  const TransferOptions& options_;
  const std::span<const SlabMap> slabs_;
  SourceFiles& files_;
  std::vector<Share> shares_;
  Mutex mutex_;
  CondVar made_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<TransferWindow> current_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<TransferWindow> next_ ABSL_GUARDED_BY(mutex_);
  bool making_ ABSL_GUARDED_BY(mutex_) = false;
  size_t next_share_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_item_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_WINDOW_QUEUE_H_
