// A file that torch.save wrote: its pickle and the storages that its tensors are views of. All
// formats that hold files of torch use it.
#ifndef CKPTD_COMMON_SOURCE_TORCH_FILE_H_
#define CKPTD_COMMON_SOURCE_TORCH_FILE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/index.h"
#include "common/source/pickle/pickle.h"
#include "common/source/pickle/value.h"
#include "common/source/storage.h"

namespace ckptd::torch {

// Ours: as many as other formats may have.
inline constexpr size_t kMaxTensorDims = 64;

// Bytes of a file that tensors are views of.
struct StorageBytes {
  uint64_t offset = 0;  // absolute in its file
  uint64_t bytes = 0;
  bool is_deflated = false;  // no tensor can lie in it: the piece has no offset in the file
  uint32_t crc32 = 0;        // of the bytes, as the file states it; 0: it does not
};

// A file of torch.save, read up to its storages. Movable; values stay where they are.
struct File {
  SourceFile file;  // header_hash is of the pickle
  pickle::Document document;
  // What the file spends on the pickle: it pays for what is made of it.
  uint64_t pickle_bytes = 0;
  std::map<std::string, StorageBytes, std::less<>> storages;  // by the key that persistent ids name
  bool big_endian = false;
  std::string_view form;  // "zip", "legacy": for people
};

// Whether the object begins as torch.save's files do, or means to: a zip with a data.pkl, a legacy
// pickle with torch's magic number, or the tar form. Reads at most 64 KiB at each end. Errors mean
// no.
bool IsTorchFile(const ReadableObject& object);

// Reads a zip, or a legacy file of torch before 1.6. Errors, each with fact "file": DataLoss
// SOURCE_INVALID; Unimplemented SOURCE_UNSUPPORTED for the tar form, TorchScript and plain
// pickles, each by name; those of pickle::Parse and of the storage.
absl::StatusOr<File> ReadFile(const Storage& storage, const std::string& path);
// The same of a part of an object: an entry of a DCP file is a file of its own.
absl::StatusOr<File> ReadFile(std::shared_ptr<const ReadableObject> object, uint64_t begin,
                              uint64_t bytes);

// Reads an object that is one pickle and nothing else; `file` becomes its identity. Errors: those of
// pickle::Parse, with the fact "file" or without it, and of the storage.
absl::StatusOr<pickle::Parsed> ReadPickle(const Storage& storage, const std::string& path,
                                          SourceFile& file);

// A tensor as its file describes it.
struct Tensor {
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;
  Shape strides;        // in elements; empty: C order (CompactStrides)
  std::string storage;  // key
  uint64_t offset = 0;  // of its first element, absolute in the file, in bytes
  // Its values are those of the file conjugated, or with the other sign.
  bool conjugated = false;
  bool negated = false;
  bool is_parameter = false;
  // "module.Name" of a subclass of Tensor that it is an object of; else empty.
  std::string wrapper;
  // Equal for tensors of one dtype and shape whose elements are equal as their files' checksums
  // have it; 0: not known.
  uint64_t content = 0;
};

// The tensor of torch that `value` describes, also a Parameter; nullopt: it is something else. Its
// view lies in its storage. Errors, whose sentences begin "it is ...", with fact "file":
// Unimplemented SOURCE_UNSUPPORTED for sparse, quantised, nested and meta tensors, for compressed
// storages and unknown dtypes; DataLoss SOURCE_INVALID for a view that leaves its storage.
absl::StatusOr<std::optional<Tensor>> TensorOf(const File& file, const pickle::Value& value);

// The tensor that a Parameter, or a tensor that was moved to a device, is made of; else `value`.
const pickle::Value& Unwrapped(const pickle::Value& value);

// The dicts of attributes that a tensor was given beside its elements.
std::vector<const pickle::Value*> AttributesOf(const pickle::Value& tensor);

// The sizes that a tuple or list of whole numbers has, such as torch.Size; nullopt for what is none,
// and for more than kMaxTensorDims.
std::optional<Shape> SizesOf(const pickle::Value& value);

// The piece that holds the whole of such a tensor; `number` is the file's in the index.
Piece PieceOf(const Tensor& tensor, uint32_t number);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_TORCH_FILE_H_
