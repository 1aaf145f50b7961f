// A client of another user, for tests of what is read on its behalf.
#ifndef CKPTD_TESTS_TESTING_AS_GUEST_H_
#define CKPTD_TESTS_TESTING_AS_GUEST_H_

#include <fcntl.h>
#include <sys/stat.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/caller.h"
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

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_AS_GUEST_H_
