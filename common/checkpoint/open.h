// Opens a source: the only entry point of the format readers.
#ifndef CKPTD_COMMON_CHECKPOINT_OPEN_H_
#define CKPTD_COMMON_CHECKPOINT_OPEN_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "common/checkpoint/index.h"

namespace ckptd {

// Reads and validates the headers of `source`, a path or a file URI: a
// .safetensors file, a *.index.json file, or a directory (also a symlinked
// Hugging Face snapshot).
// In a directory: model.safetensors.index.json, else any single
// *.safetensors.index.json, else all *.safetensors files in name order.
// Blocking; thread-safe. Errors: NotFound SOURCE_NOT_FOUND, DataLoss
// SOURCE_INVALID (with the safetensors error name as fact "error", the file as
// fact "file"), PermissionDenied SOURCE_UNREADABLE, Unimplemented
// SOURCE_UNSUPPORTED for a folder with only other formats, and for a file that is
// not safetensors and has the name of another format.
absl::StatusOr<CheckpointIndex> OpenCheckpoint(const std::string& source);

// OK if there is anything by that name; else NotFound SOURCE_NOT_FOUND or PermissionDenied
// SOURCE_UNREADABLE, as OpenCheckpoint. Reads nothing.
absl::Status CheckExists(const std::string& source);

// As OpenCheckpoint, for whom CheckUnchanged is to notice every later write: waits until the
// clock tick in which a file was written last is over (20 ms; 2.1 s where file systems stamp
// by whole seconds), and reads again.
absl::StatusOr<CheckpointIndex> OpenSettledCheckpoint(const std::string& source);

// For how long from `now` a write might leave all times of the index's files as they are.
std::chrono::nanoseconds UnsettledFor(const CheckpointIndex& index,
                                      std::chrono::system_clock::time_point now);

// OK if every file of the index is still the one whose header was read (same
// device, inode, size, mtime, ctime), its index file too, and of a folder the same index
// counts, or, without one, it has no other ones; else Aborted SOURCE_CHANGED naming the file. Uses `source` and
// `files` alone.
absl::Status CheckUnchanged(const CheckpointIndex& index);

}  // namespace ckptd

#endif  // CKPTD_COMMON_CHECKPOINT_OPEN_H_
