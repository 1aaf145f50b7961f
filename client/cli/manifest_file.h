// Where `ckptctl verify --write-manifest` writes a manifest: anywhere, but never over a file of
// the checkpoint.
#ifndef CKPTD_CLIENT_CLI_MANIFEST_FILE_H_
#define CKPTD_CLIENT_CLI_MANIFEST_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/index.h"

namespace ckptd::cli {

// "-" and the names of this process's stdout: the manifest is printed and replaces no file.
bool IsStdout(const std::string& target);

// The file that a manifest at `target` becomes, after links. Writes nothing. Usage errors: one of
// the source's own files by any name, something that is no regular file, a broken link, a name in
// the source's folder that would make it part of the checkpoint.
absl::StatusOr<std::string> ManifestPath(const CheckpointIndex& index, const std::string& target);

// InvalidArgument SOURCE_INVALID if a file's name is not UTF-8. JSON cannot hold it, so the
// manifest could never match the source.
absl::Status CheckFileNames(const CheckpointIndex& index);

// Writes a temporary file and renames it, so that the file is always whole. Leaves nothing behind
// if it fails.
absl::Status WriteWhole(const std::string& path, const std::string& text);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_MANIFEST_FILE_H_
