// The two forms of torch.save's files. Only file.cc uses it.
#ifndef CKPTD_COMMON_SOURCE_TORCH_READ_FILE_H_
#define CKPTD_COMMON_SOURCE_TORCH_READ_FILE_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/pickle/pickle.h"
#include "common/source/torch/file.h"
#include "common/source/zip/object_part.h"

namespace ckptd::torch {

// Reads a file of torch 1.6 and newer. Errors, here and below: those of ReadFile.
absl::StatusOr<File> ReadZip(const zip::ObjectPart& part);

// Reads a file from before torch 1.6, or with _use_new_zipfile_serialization=False: pickles one
// behind the other, then the storages.
absl::StatusOr<File> ReadLegacy(const zip::ObjectPart& part);

// Whether a file that begins so is of the second form.
bool BeginsAsLegacy(std::span<const std::byte> head);

// As pickle::Parse, with fact "file".
absl::StatusOr<pickle::Parsed> ParsePickle(const zip::ObjectPart& part,
                                           std::span<const std::byte> bytes,
                                           const pickle::Limits& limits = {});

// DataLoss SOURCE_INVALID if the pickle asks for one storage in several dtypes.
absl::Status CheckStorages(const zip::ObjectPart& part, const pickle::Document& document);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_TORCH_READ_FILE_H_
