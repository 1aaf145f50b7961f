#include "client/cli/remarks.h"

namespace ckptd::cli {

void NoteRemarks(const std::vector<std::string>& remarks, const Context& context) {
  if (context.json()) return;
  for (const std::string& remark : remarks) context.Note("note: " + remark);
}

std::vector<std::string> RemarksOf(Client& client, const std::string& source) {
  const absl::StatusOr<SourceInfo> info = client.Inspect(source);
  return info.ok() ? info->remarks : std::vector<std::string>();
}

}  // namespace ckptd::cli
