// The index of an inspection of which pages are still to come.
#ifndef CKPTD_SERVER_RPC_INSPECTED_INDEX_H_
#define CKPTD_SERVER_RPC_INSPECTED_INDEX_H_

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/source/index.h"

namespace ckptd {

// Keeps one index, the last that was put, until `patience` after its last use: a client that asks for
// no further page costs memory for so long. Thread-safe. A service owns it.
class InspectedIndex {
 public:
  explicit InspectedIndex(std::chrono::nanoseconds patience = std::chrono::seconds(30))
      : patience_(patience) {}
  ~InspectedIndex();
  InspectedIndex(const InspectedIndex&) = delete;
  InspectedIndex& operator=(const InspectedIndex&) = delete;

  // Replaces the one before. Keeps nothing where no thread can be had for the time.
  // `view`: the text of the view that has made it.
  void Put(std::shared_ptr<const CheckpointIndex> index, std::string view = "");
  // Null: there is none of that source and view.
  std::shared_ptr<const CheckpointIndex> Get(const std::string& source, const std::string& view = "");
  void Drop(const std::string& source);

 private:
  bool StartTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropWhenUnused();

  const std::chrono::nanoseconds patience_;
  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<const CheckpointIndex> index_ ABSL_GUARDED_BY(mutex_);
  std::string view_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point used_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread timer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_INSPECTED_INDEX_H_
