#include "common/base/line_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ckptd {

LineWriter::LineWriter(int fd) : fd_(fd) {
  struct stat info = {};
  // closed; if the number is opened later, that is not for lines
  if (::fstat(fd, &info) != 0) return;
  if (S_ISREG(info.st_mode) || S_ISBLK(info.st_mode)) {
    kind_ = Kind::kFile;
  } else if (S_ISSOCK(info.st_mode)) {
    kind_ = Kind::kSocket;
  } else {
    // O_NONBLOCK belongs to the open file description, which the shell and other processes share
    // with us. So this opens a description of its own.
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    own_ = UniqueFd(
        ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_APPEND | O_NOCTTY | O_CLOEXEC));
    // A pipe or terminal of another user may not be reopened.
    kind_ = own_.valid() ? Kind::kOwn : Kind::kPolled;
  }
}

bool LineWriter::Write(std::string_view line) {
  rest_.erase(0, Take(rest_));
  if (!rest_.empty()) return false;
  const size_t taken = Take(line);
  if (taken == 0) return false;
  rest_ = line.substr(taken);
  return true;
}

// Writes what the reader takes. Returns how many bytes that were.
size_t LineWriter::Take(std::string_view bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = WriteOnce(bytes.substr(done));
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      break;
    }
  }
  return done;
}

ssize_t LineWriter::WriteOnce(std::string_view bytes) const {
  switch (kind_) {
    case Kind::kNone:
      return 0;
    case Kind::kFile:
      return ::write(fd_, bytes.data(), bytes.size());
    case Kind::kOwn:
      return ::write(own_.get(), bytes.data(), bytes.size());
    case Kind::kSocket:
      return ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    case Kind::kPolled: {
      // A pipe that is ready takes this many bytes at once.
      pollfd entry = {.fd = fd_, .events = POLLOUT, .revents = 0};
      if (::poll(&entry, 1, 0) <= 0) return 0;
      return ::write(fd_, bytes.data(), std::min<size_t>(bytes.size(), PIPE_BUF));
    }
  }
  return 0;
}

}  // namespace ckptd
