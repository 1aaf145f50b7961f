// ckptctl as a function.
#ifndef CKPTD_CLIENT_CLI_CLI_H_
#define CKPTD_CLIENT_CLI_CLI_H_

#include <string>
#include <vector>

#include "client/cli/io.h"

namespace ckptd::cli {

// Runs one command line (without the program's name) and returns its exit code,
// see exit_codes.h. Reads the environment; throws nothing.
int RunCli(const std::vector<std::string>& arguments, Io& io);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_CLI_H_
