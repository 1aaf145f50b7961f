#include "server/daemon/process_limits.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "common/base/posix.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/commands.h"

namespace ckptd {
namespace {

absl::Status TooLow(const std::string& what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, "starting: " + what);
}

// Threads that wait for each other's start, and then end.
class WaitingThreads {
 public:
  absl::Status Open() {
    int fds[2] = {-1, -1};
    if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
    reader_ = UniqueFd(fds[0]);
    writer_ = UniqueFd(fds[1]);
    return absl::OkStatus();
  }
  ~WaitingThreads() {
    writer_.Reset();
    for (const pthread_t thread : threads_) ::pthread_join(thread, nullptr);
  }
  // 0, or the system's error.
  int Add() {
    pthread_t thread = {};
    const int error = ::pthread_create(&thread, nullptr, &Wait, &reader_);
    if (error == 0) threads_.push_back(thread);
    return error;
  }

 private:
  static void* Wait(void* reader) {
    char nothing = 0;
    while (::read(static_cast<UniqueFd*>(reader)->get(), &nothing, 1) < 0 && errno == EINTR) continue;
    return nullptr;
  }
  UniqueFd reader_;
  UniqueFd writer_;
  std::vector<pthread_t> threads_;
};

absl::Status CheckAddresses(uint64_t bytes) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  void* const address =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address != MAP_FAILED) {
    ::munmap(address, bytes);
    return absl::OkStatus();
  }
  return TooLow(fmt::format("this process may have {} MB of addresses (ulimit -v), and a daemon needs {} "
                            "MB beside its shards; raise that limit, or remove it: memory is limited by "
                            "control groups",
                            limit.rlim_cur >> 20, bytes >> 20));
}

}  // namespace

absl::Status CheckProcessLimits(size_t threads, uint64_t bytes) {
  CKPTD_RETURN_IF_ERROR(CheckAddresses(bytes));
  WaitingThreads started;
  CKPTD_RETURN_IF_ERROR(started.Open());
  for (size_t i = 0; i < threads; ++i) {
    const int error = started.Add();
    if (error == 0) continue;
    return TooLow(fmt::format("of the {} threads that a daemon starts with this process got {} ({}); "
                              "raise the limit of processes (ulimit -u, or pids.max of its control group, "
                              "as a container has it) or of memory (ulimit -v, ulimit -d)",
                              threads, i, std::strerror(error)));
  }
  return absl::OkStatus();
}

void SayWhenMemoryEnds() {
  std::set_new_handler([] {
    constexpr char kSentence[] =
        "ckptd: allocating memory: this process may have no more (ulimit -v, ulimit -d); raise that "
        "limit [NO_MEMORY]\n";
    const ssize_t ignored = ::write(STDERR_FILENO, kSentence, sizeof(kSentence) - 1);
    (void)ignored;
    ::_exit(kExitFailed);
  });
}

}  // namespace ckptd
