// A client of another user, for tests of what is read on its behalf.
#ifndef CKPTD_TESTS_TESTING_AS_GUEST_H_
#define CKPTD_TESTS_TESTING_AS_GUEST_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/caller.h"
#include "common/base/fd_passing.h"
#include "common/base/posix.h"
#include "common/source/access.h"

namespace ckptd {

// No file of a test belongs to them.
inline Caller SomeGuest(std::vector<gid_t> groups = {}) {
  return {43'210, 43'211, std::move(groups)};
}

inline SourceAccess AccessOf(std::optional<Caller> guest, std::vector<std::string> roots = {},
                             std::string job = "") {
  auto rules = std::make_shared<SourceRules>();
  rules->roots = std::move(roots);
  return {rules, std::move(guest), std::move(job)};
}

inline PassedFiles::Descriptor OpenToPass(const std::string& path, int flags = O_RDONLY) {
  return std::make_shared<const UniqueFd>(::open(path.c_str(), flags | O_CLOEXEC));
}

// A connection of that user to a Unix socket, whose folder and file are opened to everybody. Invalid
// where this process is not root's.
inline UniqueFd ConnectAs(uid_t uid, gid_t gid, const std::string& path, Deadline deadline) {
  namespace fs = std::filesystem;
  fs::permissions(fs::path(path).parent_path(), fs::perms(0755));
  fs::permissions(path, fs::perms(0006), fs::perm_options::add);
  UniqueFd socket;
  std::thread([&] {
    // The system calls change this thread only; glibc's functions would change all threads.
    if (::syscall(SYS_setresgid, -1, gid, -1) != 0) return;
    if (::syscall(SYS_setresuid, -1, uid, -1) != 0) return;
    if (auto connected = ConnectUnix(path, deadline); connected.ok()) socket = *std::move(connected);
  }).join();
  return socket;
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_AS_GUEST_H_
