// Tells the service manager (systemd, Type=notify) how far this process is.
#ifndef CKPTD_SERVER_DAEMON_SERVICE_MANAGER_H_
#define CKPTD_SERVER_DAEMON_SERVICE_MANAGER_H_

#include <string>

namespace ckptd {

// Sends `state`, such as "READY=1\nSTATUS=serving", to the socket that NOTIFY_SOCKET names. Does
// nothing where there is none. Never blocks: what the manager does not take is lost. The protocol
// is that of sd_notify(3), which needs no library.
void NotifyServiceManager(const std::string& state);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_SERVICE_MANAGER_H_
