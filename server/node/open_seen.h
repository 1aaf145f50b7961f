// Opens a source for a question about what a load through a view would find.
#ifndef CKPTD_SERVER_NODE_OPEN_SEEN_H_
#define CKPTD_SERVER_NODE_OPEN_SEEN_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/source/access.h"
#include "common/source/format.h"

namespace ckptd {

// `view`: as in LoadRequest. Blocking; thread-safe. Errors: those of view::ReadView, before anything is
// opened, of OpenWithRemarks and of view::SeenThrough.
absl::StatusOr<OpenedCheckpoint> OpenSeen(const std::string& source, const std::string& view,
                                          const SourceAccess& access);

}  // namespace ckptd

#endif  // CKPTD_SERVER_NODE_OPEN_SEEN_H_
