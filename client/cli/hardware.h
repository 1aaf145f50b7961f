// Hardware for predictions, by name or from a file.
#ifndef CKPTD_CLIENT_CLI_HARDWARE_H_
#define CKPTD_CLIENT_CLI_HARDWARE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/load_model.h"

namespace ckptd::cli {

// Names that FindHardware knows.
std::vector<std::string> HardwareNames();

// A known name, or a JSON file with the fields of Hardware, rates in GB/s. The known rates are
// assumptions about such machines, not measurements. Errors: UsageError's; those of reading the
// file.
absl::StatusOr<Hardware> FindHardware(const std::string& name_or_file);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_HARDWARE_H_
