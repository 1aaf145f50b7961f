// The seam for formats: what lies at a path, and which tensors that holds. A format is a folder in
// formats/, a line in registry.cc, and its run of tests/contract/format.
#ifndef CKPTD_COMMON_SOURCE_FORMAT_H_
#define CKPTD_COMMON_SOURCE_FORMAT_H_

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/index.h"
#include "common/source/storage.h"

namespace ckptd {

// Ours, per source: bounds the work and memory that a hostile folder can cause.
inline constexpr size_t kMaxSourceFiles = 100'000;
inline constexpr size_t kMaxFolderEntries = 1'000'000;

// What a source is by names alone.
struct Listing {
  std::string source;  // absolute, without a slash at its end, and without its part
  bool is_folder = false;
  std::vector<std::string> names;  // of the entries of a folder, sorted
  // Which part of it was asked for, where a source has several ("model", "optimizer"): what stood
  // behind the "#" of its name. Empty: the one that a format takes by default.
  std::string part = {};
};

// Blocking. Errors: those of Storage; InvalidArgument SOURCE_INVALID for a folder of more than
// kMaxFolderEntries.
absl::StatusOr<Listing> ListSource(const Storage& storage, const std::string& source);

// Whether it is a folder with weights as transformers and accelerate call them: then it means those,
// unless another part is asked for.
bool HasUsualWeights(const Listing& listing);

// The error for files that a folder lacks: NotFound SOURCE_NOT_FOUND, fact "file" the first one. The
// sentence names all of them, or as many as it has room for. `names` are relative to the folder, not
// empty, and end "opening FOLDER: it lacks NAMES; ADVICE".
absl::Status FilesMissing(const std::string& folder, const std::vector<std::string>& names,
                          std::string_view advice);

// Sorts the tensors of an index by name and checks each. Errors, with facts "file" and "tensor":
// DataLoss SOURCE_INVALID for a name that is there twice, and for a piece that does not hold
// together (WhyImpossible).
absl::Status FinishTensors(CheckpointIndex& index);

// OK if no part was asked for, or one of `parts`; else NoSuchPart.
absl::Status CheckPart(const Listing& listing, std::initializer_list<std::string_view> parts);
// InvalidArgument SOURCE_INVALID for a source that has these parts and not the one asked for.
absl::Status NoSuchPart(const Listing& listing, std::span<const std::string_view> parts);

struct OpenedCheckpoint {
  CheckpointIndex index;
  // Sentences for people about what does no harm: files that were left out, and where an index
  // differs from its files.
  std::vector<std::string> remarks;
};

// One for the whole process; has no state. Thread-safe. Reads through `storage` alone, and trusts
// nothing that it reads: every number is checked, every size bounded.
class CheckpointFormat {
 public:
  virtual ~CheckpointFormat() = default;

  // "safetensors": for people and for tests.
  virtual std::string_view name() const = 0;

  // Whether the source is of this format, or means to be: then this format says what is wrong with
  // it. May look at the first bytes of an object. Errors mean no.
  virtual bool Recognise(const Storage& storage, const Listing& listing) const = 0;

  // OK if ReadIndex would find what to read; else its error. What can be known before a load
  // begins: reads indices and, of a single object, the header.
  virtual absl::Status Check(const Storage& storage, const Listing& listing) const = 0;

  // All tensors of the source, from its headers. Of the index `tensors` are sorted and unique, and
  // every piece holds together (WhyImpossible); `files` are those that hold tensors, then those
  // that said which; `source`, `part` and `format` are left to the caller. Errors, each with fact "file": DataLoss
  // SOURCE_INVALID (with the fact "error" where the format has a name for it), InvalidArgument
  // SOURCE_INVALID where a limit is passed, Unimplemented SOURCE_UNSUPPORTED, NotFound
  // SOURCE_NOT_FOUND; those of the storage.
  virtual absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                                     const Listing& listing) const = 0;

  // Whether a folder that has become `listing` still means `files`, which are an index's. Reads
  // nothing but what says which files count. An error says that it means nothing now.
  virtual absl::StatusOr<bool> StillMeans(const Storage& storage, const Listing& listing,
                                          const std::vector<SourceFile>& files) const = 0;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMAT_H_
