// Where `ckptctl verify --write-manifest` keeps a manifest: beside the checkpoint it is of,
// never in place of one of its files.
#ifndef CKPTD_CLIENT_CLI_MANIFEST_FILE_H_
#define CKPTD_CLIENT_CLI_MANIFEST_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/index.h"

namespace ckptd::cli {

// "-" and the names of this process's stdout: the manifest is printed, nothing is replaced.
bool IsStdout(const std::string& target);

// The file that a manifest at `target` becomes, links followed. Touches nothing. Bad usage:
// one of the source's own files by whatever name, what exists and is no regular file, a link
// that leads nowhere, a name in the source's folder that makes it part of the checkpoint.
absl::StatusOr<std::string> ManifestPath(const CheckpointIndex& index, const std::string& target);

// InvalidArgument SOURCE_INVALID when a file's name is no UTF-8: JSON cannot hold it, so the
// manifest could never match the source again.
absl::Status CheckFileNames(const CheckpointIndex& index);

// A file that is there is whole: it is renamed into its place. Nothing is left of a failure.
absl::Status WriteWhole(const std::string& path, const std::string& text);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_MANIFEST_FILE_H_
