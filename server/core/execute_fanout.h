// Runs the Execute streams of all members while bytes are being placed: pushes
// progress ten times a second and notices a member that goes away at once.
#ifndef CKPTD_SERVER_CORE_EXECUTE_FANOUT_H_
#define CKPTD_SERVER_CORE_EXECUTE_FANOUT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "server/core/links.h"

namespace ckptd {

// Made and destroyed by one thread; broken() from any. Destruction without
// Finish aborts the streams.
class ExecuteFanout {
 public:
  struct Member {
    uint32_t rank = 0;
    std::shared_ptr<MemberLink> link;
    ReadOrder read = {};
    std::optional<ScatterCall> scatter = {};

    // It does something that it must be told to end.
    bool works() const { return !read.empty() || scatter.has_value(); }
  };
  struct Load {
    uint64_t epoch = 0;
    std::string name;
    Deadline deadline;
  };
  ExecuteFanout(std::vector<Member> members, Load load, std::function<Progress()> progress);
  ~ExecuteFanout();
  ExecuteFanout(const ExecuteFanout&) = delete;
  ExecuteFanout& operator=(const ExecuteFanout&) = delete;

  // The first stream's error and its rank; OK while all run.
  std::pair<uint32_t, absl::Status> broken() const;
  // Tells every member that the leader's own reading is done and waits for them
  // all, calling `progress` meanwhile: the first rank that failed and why, or (0, OK).
  std::pair<uint32_t, absl::Status> Finish();
  // After Finish: of the members that read.
  const std::vector<ReadReport>& reports() const { return reports_; }

 private:
  void Tick();
  void Stop();
  void AbortOthers(size_t failed, const absl::Status& why);

  const std::vector<Member> members_;
  const Load load_;
  const std::function<Progress()> progress_;
  std::vector<std::unique_ptr<ExecuteStream>> streams_;  // the ticker's, then Finish's
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t broken_rank_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReadReport> reports_;
  std::thread ticker_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CORE_EXECUTE_FANOUT_H_
