#include "server/node/open_seen.h"

#include <utility>

#include "common/base/status.h"
#include "common/plan/view/view.h"
#include "common/source/open.h"

namespace ckptd {

absl::StatusOr<OpenedCheckpoint> OpenSeen(const std::string& source, const std::string& view,
                                          const SourceAccess& access) {
  CKPTD_RETURN_IF_ERROR(view::ReadView(view).status());
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenWithRemarks(source, access));
  CKPTD_ASSIGN_OR_RETURN(opened.index, view::SeenThrough(view, std::move(opened.index)));
  return opened;
}

}  // namespace ckptd
