// A manifest: what the bytes of a source were when somebody looked, one digest per
// file and per tensor, to find out later, or elsewhere, whether they still are.
#ifndef CKPTD_COMMON_SOURCE_MANIFEST_H_
#define CKPTD_COMMON_SOURCE_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/index.h"

namespace ckptd {

// Ours: room for a million tensors.
inline constexpr size_t kMaxManifestBytes = 500'000'000;

// Plain values. Names of files are relative to the folder of the source, so that a
// copy elsewhere can be compared.
struct Manifest {
  struct File {
    std::string name;
    uint64_t bytes = 0;
    uint64_t header = 0;  // XXH3-64 of the bytes that were parsed (an index: of all)
    // XXH3-64 of `header` and the digests of the pieces in it, in the order of their bytes,
    // 8 bytes little-endian each: every byte of a file that means anything is in one of them.
    uint64_t digest = 0;
  };
  struct Piece {
    uint32_t file = 0;    // index into `files`
    uint64_t digest = 0;  // as TensorDigest, of its bytes in the order in which they lie there
    bool operator==(const Piece&) const = default;
  };
  struct Tensor {
    std::string name;
    Dtype dtype = Dtype::kUnspecified;
    Shape shape;
    uint64_t bytes = 0;
    // At least one; of several the order is that of the index.
    std::vector<Piece> pieces;
  };
  std::string source;
  std::vector<File> files;      // as in the index
  std::vector<Tensor> tensors;  // sorted by name
};

// What a manifest of `index` calls this file: relative to the folder of the source.
std::string NameInManifest(const CheckpointIndex& index, const SourceFile& file);

// Reads every byte of the source, with as many threads as there are cores, `threads`
// at most (0: 16). Blocking; thread-safe. Errors: those of reading, naming the file;
// Aborted SOURCE_CHANGED when a file changed meanwhile.
absl::StatusOr<Manifest> MakeManifest(const CheckpointIndex& index, unsigned threads = 0);

// One thing in which a source is not what its manifest says.
struct ManifestDifference {
  std::string tensor;  // empty: it is about the file
  std::string file;    // name of it in the manifest, or in the source if it is new
  std::string what;    // "its bytes differ"
};
// Empty when all of both is the same. The names of files count, unless each has one alone.
std::vector<ManifestDifference> Compare(const Manifest& kept, const Manifest& now);

// JSON, one line per file and tensor.
std::string ToJson(const Manifest& manifest);
// Errors: InvalidArgument SOURCE_INVALID saying what is wrong; Unimplemented
// SOURCE_UNSUPPORTED for a version that is not known. Takes any bytes.
absl::StatusOr<Manifest> ParseManifest(std::string_view json);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_MANIFEST_H_
