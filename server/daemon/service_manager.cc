#include "server/daemon/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "common/base/logging.h"
#include "common/base/posix.h"
#include "server/daemon/environment.h"

namespace ckptd {

void NotifyServiceManager(const std::string& state) {
  const auto path = ReadEnvironment("NOTIFY_SOCKET");
  sockaddr_un address = {};
  if (!path.has_value() || path->size() >= sizeof(address.sun_path)) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path->data(), path->size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // an abstract one
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path->size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address), length) < 0) {
    Log(LogLevel::kWarn, "telling the service manager at {}: {}", *path, std::strerror(errno));
  }
}

}  // namespace ckptd
