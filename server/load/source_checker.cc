#include "server/load/source_checker.h"

#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/base/at_once.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

absl::Status NoAnswer(const std::string& source) {
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("checking the files of {}: the storage that they are on does not "
                               "answer; look at its server and mounts, then load again",
                               source),
                   {{"file", source}});
}

}  // namespace

SourceChecker::SourceChecker(Check check) : check_(std::move(check)) {}

void SourceChecker::Begin(Running& running, const std::string& source) {
  ++running.of[source];
  ++running.all;
}

void SourceChecker::End(Running& running, const std::string& source) {
  MutexLock lock(running.mutex);
  if (--running.of[source] == 0) running.of.erase(source);
  --running.all;
  running.changed.NotifyAll();
}

absl::Status SourceChecker::CheckFiles(const std::string& source,
                                       const std::vector<SourceFile>& files,
                                       Deadline deadline, const SourceAccess& access) {
  {
    MutexLock lock(running_->mutex);
    const auto free = [this, &source]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_->mutex) {
      const auto same = running_->of.find(source);
      return running_->all < kAtOnce && (same == running_->of.end() || same->second < kPerSource);
    };
    if (!running_->changed.WaitUntil(running_->mutex, deadline, free)) return NoAnswer(source);
    Begin(*running_, source);
  }
  CheckpointIndex index;
  index.source = source;
  index.files = files;
  auto answer = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answered = answer->get_future();
  try {
    std::thread([running = running_, check = check_, index = std::move(index), answer, access] {
      answer->set_value(check(index, access));
      End(*running, index.source);
    }).detach();
  } catch (const std::system_error& error) {
    End(*running_, source);
    return NoThread(fmt::format("checking the files of {}", source), error);
  }
  if (answered.wait_until(deadline) != std::future_status::ready) return NoAnswer(source);
  return answered.get();
}

bool IsDefinitive(const absl::Status& checked) {
  return checked.code() != absl::StatusCode::kDeadlineExceeded &&
         checked.code() != absl::StatusCode::kResourceExhausted;
}

bool IsDenied(const absl::Status& checked) {
  const std::string why = ReasonOf(checked);
  return why == reason::kSourceForbidden || why == reason::kSourceOutsideRoots;
}

}  // namespace ckptd
