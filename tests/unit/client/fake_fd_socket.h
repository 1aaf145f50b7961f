// A fake fd socket, whose answers tests choose.
#ifndef CKPTD_TESTS_UNIT_CLIENT_FAKE_FD_SOCKET_H_
#define CKPTD_TESTS_UNIT_CLIENT_FAKE_FD_SOCKET_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/fd_passing.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "tests/testing/temp_folder.h"

namespace ckptd::fake {

inline constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

// A memfd with these bytes in it, opened for reading unless `writable`.
inline UniqueFd MemoryOf(const std::string& bytes, bool writable = false) {
  UniqueFd fd(::memfd_create("fake", MFD_CLOEXEC));
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  return writable ? std::move(fd) : UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

// Answers each connection with `answer` on a thread of its own, and counts the connections that
// clients have closed.
class FakeFdSocket {
 public:
  using Answer = std::function<void(int socket)>;

  explicit FakeFdSocket(std::string path) : path_(std::move(path)) {
    listener_ = UnixListener::Open(path_, 0600).value();
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~FakeFdSocket() {
    stop_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  FakeFdSocket(const FakeFdSocket&) = delete;
  FakeFdSocket& operator=(const FakeFdSocket&) = delete;

  const std::string& path() const { return path_; }
  void set_answer(Answer answer) { answer_ = std::move(answer); }
  static Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

  static std::string Header(uint32_t status, uint32_t fds, uint32_t remaining) {
    std::string out = "CKP1";
    for (const uint32_t field : {status, fds, remaining}) {
      for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(field >> shift));
    }
    return out;
  }
  static void Send(int socket, const std::string& bytes, const std::vector<int>& fds = {}) {
    const absl::Status sent = SendWithFds(socket, std::as_bytes(std::span(bytes)), fds, Soon());
    // A client may have closed its side meanwhile.
    EXPECT_TRUE(sent.ok() || absl::IsUnavailable(sent)) << sent;
  }
  // True when `count` connections have ended in time.
  bool WaitForEnded(int count) {
    MutexLock lock(mutex_);
    return changed_.WaitUntil(mutex_, Soon(), [&] { return ended_ >= count; });
  }
  int ended() {
    MutexLock lock(mutex_);
    return ended_;
  }

 private:
  void Accept() {
    while (!stop_) {
      if (!WaitForFd(listener_.get(), POLLIN, Soon(), "accepting").ok()) continue;
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) continue;
      threads_.emplace_back([this, fd = socket.Release()] { Serve(UniqueFd(fd)); });
    }
  }
  void Serve(UniqueFd socket) {
    const auto token = RecvExactly(socket.get(), 32, 0, Soon());
    if (token.ok() && answer_) answer_(socket.get());
    // A client sends nothing more, so this waits for its end.
    RecvWithFds(socket.get(), 1, 0, Soon()).status().IgnoreError();
    MutexLock lock(mutex_);
    ++ended_;
    changed_.NotifyAll();
  }

  const std::string path_;
  UnixListener listener_;
  Answer answer_;
  std::atomic<bool> stop_ = false;
  std::thread acceptor_;
  std::vector<std::thread> threads_;  // and the acceptor's, until it is joined
  Mutex mutex_;
  CondVar changed_;
  int ended_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptd::fake

#endif  // CKPTD_TESTS_UNIT_CLIENT_FAKE_FD_SOCKET_H_
