// The ends of many Execute streams, waited for by a bounded number of threads.
#ifndef CKPTD_SERVER_LOAD_STREAM_ANSWERS_H_
#define CKPTD_SERVER_LOAD_STREAM_ANSWERS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/protocol/links.h"

namespace ckptd {

// Why a stream has ended of itself, whatever it says.
absl::Status EndedEarly(ExecuteStream& stream);

// Used by one thread. Destruction waits until all streams have ended.
class StreamAnswers {
 public:
  using Streams = std::vector<std::unique_ptr<ExecuteStream>>;
  // `streams` outlives it, and is not used by others.
  explicit StreamAnswers(const Streams& streams) : streams_(streams), states_(streams.size()) {}
  ~StreamAnswers();
  StreamAnswers(const StreamAnswers&) = delete;
  StreamAnswers& operator=(const StreamAnswers&) = delete;

  // Begins to Finish streams, up to `most` of them at once and those behind them in turn. Errors:
  // NoThread's, when there is none for it at all.
  absl::Status Start(size_t most);
  // To the streams whose turn has not come: one that is gone has its answer then, too.
  void Send(const Progress& progress);
  using Answer = std::pair<size_t, absl::StatusOr<ReadReport>>;
  // The answers that came since the last call, each with the number of its stream; waits for one.
  std::vector<Answer> Take(std::chrono::nanoseconds wait);

 private:
  enum class State : uint8_t { kFree, kSentTo, kTaken };

  void Run(size_t first);
  // The next one whose turn it is; none: all have had theirs.
  std::optional<size_t> TakeNext();
  // Whether nobody waits for it; then it is this thread's until it is given back.
  bool Borrow(size_t stream);
  void GiveBack(size_t stream, State state);
  void Note(size_t stream, absl::StatusOr<ReadReport> answer);

  const Streams& streams_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<State> states_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // those before it have had their turns
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_STREAM_ANSWERS_H_
