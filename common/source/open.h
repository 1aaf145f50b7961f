// Opens a source, whatever its storage and format: what daemons and ckptctl begin with.
#ifndef CKPTD_COMMON_SOURCE_OPEN_H_
#define CKPTD_COMMON_SOURCE_OPEN_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "common/source/access.h"
#include "common/source/format.h"
#include "common/source/index.h"

namespace ckptd {

// The absolute path of what a person names: a path, a file URI, or a model as PathOfName takes
// it, with "#part" behind them. Where there is no such path, "~" and variables of this process are expanded as by a shell.
// Links are kept, trailing slashes are not. Errors: those of PathOfName; InvalidArgument
// SOURCE_INVALID for an empty one.
absl::StatusOr<std::string> AbsolutePath(const std::string& source);

// Reads and validates the headers of `source`, as AbsolutePath takes it but for what is expanded: a
// file, an index, or a directory (also a symlinked Hugging Face snapshot). In a directory its
// format says which files count. "#part" behind the path of a source that has several asks for one
// of them ("/ckpt#optimizer"), unless there is a file of that whole name.
// Blocking; thread-safe. Errors: NotFound SOURCE_NOT_FOUND, DataLoss
// SOURCE_INVALID (with the safetensors error name as fact "error", the file as
// fact "file"), PermissionDenied SOURCE_UNREADABLE, Unimplemented
// SOURCE_UNSUPPORTED for a folder with only other formats, and for a file that is
// not safetensors and has the name of another format; with an `access` that limits
// something PermissionDenied SOURCE_FORBIDDEN and SOURCE_OUTSIDE_ROOTS, here and below.
absl::StatusOr<CheckpointIndex> OpenCheckpoint(const std::string& source,
                                               const SourceAccess& access = {});

// As OpenCheckpoint, with remarks.
absl::StatusOr<OpenedCheckpoint> OpenWithRemarks(const std::string& source,
                                                 const SourceAccess& access = {});

// OK if OpenCheckpoint would recognise it; else its error. Reads folders, an index and, of a
// single file, the header: what can be known before a load begins.
absl::Status Recognise(const std::string& source, const SourceAccess& access = {});

// As OpenCheckpoint, for whom CheckUnchanged is to notice every later write: waits until the
// clock tick in which a file was written last is over (20 ms; 2.1 s where file systems stamp
// by whole seconds), and reads again.
absl::StatusOr<OpenedCheckpoint> OpenSettledCheckpoint(const std::string& source,
                                                       const SourceAccess& access = {});

// For how long from `now` a write might leave all times of the index's files as they are.
std::chrono::nanoseconds UnsettledFor(const CheckpointIndex& index,
                                      std::chrono::system_clock::time_point now);

// OK if every file of the index is still the one whose header was read (same
// device, inode, size, mtime, ctime), its index file too, and a folder still means the same
// ones; else Aborted SOURCE_CHANGED naming the file. Uses `source` and `files` alone.
absl::Status CheckUnchanged(const CheckpointIndex& index, const SourceAccess& access = {});

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_OPEN_H_
