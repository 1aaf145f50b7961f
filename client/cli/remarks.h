// Remarks on a source: sentences about what was left out, and which part was taken.
#ifndef CKPTD_CLIENT_CLI_REMARKS_H_
#define CKPTD_CLIENT_CLI_REMARKS_H_

#include <string>
#include <vector>

#include "client/cli/context.h"

namespace ckptd::cli {

// Prints each as a note on stderr. Nothing with --quiet, nor where the answer is JSON.
void NoteRemarks(const std::vector<std::string>& remarks, const Context& context);

// What the daemon remarks on `source`; nothing if it cannot read it.
std::vector<std::string> RemarksOf(Client& client, const std::string& source);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_REMARKS_H_
