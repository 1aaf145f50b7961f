// Runs queries of clients that may take long: inspections, dry runs, verifications.
#ifndef CKPTD_SERVER_NODE_QUERY_QUEUE_H_
#define CKPTD_SERVER_NODE_QUERY_QUEUE_H_

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/load/storage_stalls.h"
#include "server/load/worker.h"
#include "server/protocol/domain.h"

namespace ckptd {

// The caller that waits for an answer.
struct CallContext {
  CallContext(Deadline until) : deadline(until) {}
  CallContext(Deadline until, std::function<bool()> has_gone)
      : deadline(until), gone(std::move(has_gone)) {}
  Deadline deadline;
  std::function<bool()> gone = [] { return false; };  // polled now and then
  // As in LoadRequest.
  std::optional<Caller> guest = {};
  std::string job = {};
};

// Answers queries one after the other, concurrently with loads. Those whose storage stands still
// are passed. Node owns it. Thread-safe.
class QueryQueue {
 public:
  // Most queries at a time, waiting or running: each occupies a thread of its server.
  static constexpr int kMost = 32;

  // A query whose call to storage lasts for `patience` is passed.
  explicit QueryQueue(StorageWatch::Clock::duration patience = timing::kStorageStill)
      : patience_(patience) {}

  // Runs `question` and waits for the answer. `doing` is the beginning of errors. Errors:
  // DeadlineExceeded DEADLINE, also if the caller has gone, or STORAGE_STALLED with the file that
  // it waits for; ResourceExhausted INVALID_REQUEST if too many wait. A query whose caller has gone
  // is not run, unless it has begun. `watch`: of all that the question reads; null: it reads
  // nothing from storage.
  template <typename T>
  absl::StatusOr<T> Ask(std::function<absl::StatusOr<T>()> question, const CallContext& asker,
                        const std::string& doing,
                        std::shared_ptr<StorageWatch> watch = nullptr) {
    if (!Enter()) return TooMany(doing);
    const auto left = std::make_shared<std::atomic<bool>>(false);
    std::future<absl::StatusOr<T>> answer =
        worker_.Submit([this, left, watch, asked = std::move(question)]() -> absl::StatusOr<T> {
          if (*left || stopping_) return absl::CancelledError("nobody waits for the answer");
          if (watch == nullptr) return asked();
          return RunOutside(&worker_, *watch, asked, patience_);
        });
    const auto given_up = [&] {
      // A call that has ended by itself would not say which file it waited for.
      const bool stands = watch != nullptr && watch->Oldest(patience_).has_value();
      return Clock::now() >= asker.deadline - (stands ? kHeadStart : kPoll * 0) || asker.gone();
    };
    while (!given_up() && answer.wait_for(kPoll) != std::future_status::ready) {
    }
    *left = true;
    --waiting_;
    const bool answered = answer.wait_for(kPoll * 0) == std::future_status::ready;
    return answered ? answer.get() : NoAnswer(doing, watch.get());
  }
  // Waiting queries are not run any more.
  void Stop() { stopping_ = true; }

 private:
  static constexpr std::chrono::milliseconds kPoll{50};
  static constexpr std::chrono::milliseconds kHeadStart{500};

  bool Enter();
  static absl::Status TooMany(const std::string& doing);
  absl::Status NoAnswer(const std::string& doing, StorageWatch* watch) const;

  const StorageWatch::Clock::duration patience_;
  std::atomic<int> waiting_ = 0;
  std::atomic<bool> stopping_ = false;
  Worker worker_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_NODE_QUERY_QUEUE_H_
