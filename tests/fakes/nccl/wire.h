// Sockets between the ranks: abstract Unix ones, which leave nothing behind when a process is
// killed and reach as far as one network namespace; or TCP at a chosen interface.
#ifndef CKPTD_TESTS_FAKES_NCCL_WIRE_H_
#define CKPTD_TESTS_FAKES_NCCL_WIRE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace ckptd::fake_nccl {

using Clock = std::chrono::steady_clock;
using Stop = std::atomic<bool>;

// One descriptor. Not common/base/posix.h's: a shared library cannot hold the libraries that one
// needs.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();

 private:
  int fd_ = -1;
};

// The name of an abstract socket, without the 0 in front; or, where `port` is not 0, TCP.
struct Address {
  char name[64] = {};
  std::uint32_t ip = 0;    // as the network has them
  std::uint16_t port = 0;
};
// "" for anything but such a name; every address has one.
std::string Text(const Address& address);

// A listener under a name that nobody has. Interface "": an abstract socket.
UniqueFd Listen(const std::string& interface, Address& address);
// Invalid: nobody listens there by `until`, or `stop`.
UniqueFd Connect(const Address& address, Clock::time_point until, const Stop& stop);
// Invalid: `stop`, or the listener is broken.
UniqueFd Accept(int listener, const Stop& stop);
// All of it; false: the other side is gone, or `stop`.
bool ReadAll(int fd, void* data, std::size_t bytes, const Stop& stop);
bool WriteAll(int fd, const void* data, std::size_t bytes, const Stop& stop);

template <typename T>
bool Read(int fd, T& value, const Stop& stop) {
  return ReadAll(fd, &value, sizeof value, stop);
}
template <typename T>
bool Write(int fd, const T& value, const Stop& stop) {
  return WriteAll(fd, &value, sizeof value, stop);
}

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_FAKES_NCCL_WIRE_H_
