// Writes safetensors files, byte for byte as the reference library does.
#ifndef CKPTD_TESTS_TESTING_SAFETENSORS_WRITER_H_
#define CKPTD_TESTS_TESTING_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/dtype.h"
#include "common/source/index.h"

namespace ckptd {

struct TensorToWrite {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;
};

// Where everything goes in the file.
struct SafetensorsLayout {
  std::string start;            // the length and the padded JSON
  std::vector<size_t> order;    // tensors (as given) in the order of their data
  std::vector<uint64_t> bytes;  // of each tensor (as given)
};

// Lays a file out: widest dtype first, then by name, data back to back. Pure.
// Errors: InvalidArgument SOURCE_INVALID for a name that is repeated, reserved
// or not UTF-8, a shape that overflows, a header past the format's limit.
absl::StatusOr<SafetensorsLayout> LayoutSafetensors(
    const std::vector<TensorToWrite>& tensors, const std::map<std::string, std::string>& metadata);

// Fills `out` with the bytes of tensor `tensor` (as given) from `offset` on.
using TensorBytesSource =
    std::function<absl::Status(size_t tensor, uint64_t offset, std::span<std::byte> out)>;

// Writes `path` whole or not at all: to a hidden file beside it, synchronised,
// then renamed over it. `source` is called in file order with pieces of at most
// a few MiB. Blocking. Errors: as above, those of `source`, and those of the
// file system (ResourceExhausted NO_MEMORY when the disk is full).
absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const TensorBytesSource& source);

// The same, for bytes that lie in memory: data[i] belongs to tensors[i].
// InvalidArgument SOURCE_INVALID when one has not the size of its tensor.
absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const std::vector<std::span<const std::byte>>& data);

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_SAFETENSORS_WRITER_H_
