// Hands the work items of a transfer to its threads in file order, and makes windows
// as they are needed: the next one while threads work on the last.
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

// Thread-safe. What it is made with outlives it.
class WindowQueue {
 public:
  // `slabs` are of the targets here.
  WindowQueue(const WindowSource& source, const TransferOptions& options,
              std::span<const SlabMap> slabs, SourceFiles& files);

  struct Claimed {
    std::shared_ptr<TransferWindow> window;  // null: nothing is left
    std::span<const WorkItem> items;         // empty: the window has none, it is done
  };
  // Up to `most` items that follow each other, and no more bytes than that many of the usual
  // length; one at least. Errors: those of BuildSchedule, on all threads
  // from then on.
  absl::StatusOr<Claimed> Next(size_t most);

  // Makes the first window: how many items it has, and whether it is the only one.
  struct First {
    size_t items = 0;
    bool only = false;
  };
  absl::StatusOr<First> Start();

 private:
  // What this process does of a window.
  struct Share {
    size_t window = 0;
    ItemShare items;
  };

  absl::StatusOr<std::shared_ptr<TransferWindow>> Make(const Share& share) const;
  // Makes the next window, without the lock.
  void MakeAhead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const WindowSource& source_;
  const TransferOptions& options_;
  const std::span<const SlabMap> slabs_;
  SourceFiles& files_;
  std::vector<Share> shares_;
  Mutex mutex_;
  CondVar made_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<TransferWindow> current_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<TransferWindow> ahead_ ABSL_GUARDED_BY(mutex_);
  bool making_ ABSL_GUARDED_BY(mutex_) = false;
  size_t next_share_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_item_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_WINDOW_QUEUE_H_
