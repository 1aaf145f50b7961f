// Whether files are as they were when they were loaded: what a trainer that comes again waits
// for. Each question has a thread of its own, so that storage that does not answer keeps nobody
// waiting who asks about other files.
#ifndef CKPTD_SERVER_LOAD_SOURCE_CHECKER_H_
#define CKPTD_SERVER_LOAD_SOURCE_CHECKER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/source/access.h"
#include "common/source/index.h"
#include "server/protocol/domain.h"

namespace ckptd {

// Thread-safe. Threads that still wait for their storage outlive it.
class SourceChecker {
 public:
  using Check = std::function<absl::Status(const CheckpointIndex&, const SourceAccess&)>;
  // The most threads for one source, and for all. They bound what storage that hangs can hold up.
  static constexpr int kPerSource = 2;
  static constexpr int kAtOnce = 32;

  // `check` is CheckUnchanged, or Recognise where no files are given, but in tests.
  explicit SourceChecker(Check check);

  // What the check says of `files` of `source`. Errors: its own; DeadlineExceeded DEADLINE, which
  // names the source; ResourceExhausted NO_MEMORY without a thread.
  absl::Status CheckFiles(const std::string& source, const std::vector<SourceFile>& files,
                          Deadline deadline, const SourceAccess& access = {});

 private:
  struct Running {
    Mutex mutex;
    CondVar changed;
    std::map<std::string, int> of ABSL_GUARDED_BY(mutex);  // by source
    int all ABSL_GUARDED_BY(mutex) = 0;
  };
  static void Begin(Running& running, const std::string& source)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(running.mutex);
  static void End(Running& running, const std::string& source);

  const Check check_;
  const std::shared_ptr<Running> running_ = std::make_shared<Running>();
};

// Whether that was an answer about the files, and not that there is none.
bool IsDefinitive(const absl::Status& checked);
// Whether that was no: not that the files have changed, but that they are not for this client.
bool IsDenied(const absl::Status& checked);

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_SOURCE_CHECKER_H_
