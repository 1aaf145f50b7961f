// Reads what the items of one file are: where the elements of tensors lie, and what objects hold.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DCP_ITEMS_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DCP_ITEMS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/source/formats/dcp/head.h"
#include "common/source/formats/dcp/metadata.h"
#include "common/source/index.h"
#include "common/source/safetensors/file.h"
#include "common/source/storage.h"
#include "common/source/torch/file.h"
#include "common/source/zip/nearby_reads.h"
#include "common/source/zip/object_part.h"

namespace ckptd::dcp {

// The tensor of one chunk, as its item describes it.
struct ItemTensor {
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;
  Shape strides;        // in elements; empty: C order
  uint64_t offset = 0;  // of its first element, absolute in the file, in bytes
  bool big_endian = false;
};

// The values in an object that is no tensor, by their path below it; "" is the object itself.
struct ObjectValues {
  std::map<std::string, std::string> values;  // as CheckpointIndex::values
  std::map<std::string, std::string> opaque;
  std::map<std::string, std::string> types;  // as torch::Flattened::types
};

// Tensors and objects by the bytes of the pickles that describe them: thousands of items have the
// same pickle. This struct is not thread-safe.
struct KnownPickles {
  struct Described {
    ItemTensor tensor;  // its offset is from where the storage begins
    uint64_t storage_bytes = 0;
  };
  std::unordered_map<std::string, Described> tensors;
  std::unordered_map<std::string, ObjectValues> objects;
};

// Not thread-safe. Reads heads only, neighbours at once, where torch wrote the file; of files that
// others wrote whatever their form needs.
class ItemReader {
 public:
  // `offsets` are where the items begin that will be asked for, ascending. `known` outlives it.
  ItemReader(std::shared_ptr<const ReadableObject> object, std::span<const uint64_t> offsets,
             KnownPickles& known);

  // The tensor of a chunk of `key`; it has elements. Errors, here and below, with fact "file":
  // DataLoss SOURCE_INVALID, also where it is another tensor than `dtype` and `box` say;
  // Unimplemented SOURCE_UNSUPPORTED; those of the storage.
  absl::StatusOr<ItemTensor> ReadTensor(const Item& item, std::string_view key, Dtype dtype,
                                        const Box& box);
  // Also PermissionDenied SOURCE_UNSAFE. What is no pickle, or one that is not read, is opaque.
  absl::StatusOr<ObjectValues> ReadObject(const Item& item);

  // The file with a hash of what was read of it.
  SourceFile file() const;

 private:
  absl::Status Check(const Item& item) const;
  absl::StatusOr<std::span<const std::byte>> HeadOf(const Item& item);
  // Reads an item that is not as torch writes most.
  absl::StatusOr<torch::File> ReadWhole(const Item& item);
  absl::StatusOr<ItemTensor> ReadZip(const Item& item, const std::optional<Head>& head,
                                     uint64_t bytes);
  absl::StatusOr<ItemTensor> ReadSafetensors(const Item& item, std::string_view key,
                                             const Box& box);

  const zip::ObjectPart part_;
  zip::NearbyReads heads_;
  KnownPickles& known_;
  Xxh3Stream hash_;
  uint64_t read_bytes_ = 0;  // by ReadWhole
  // Offset and bytes of the object that was read last, and what is in it.
  std::optional<std::pair<std::pair<uint64_t, uint64_t>, ObjectValues>> last_object_;
  // The safetensors file that begins at the offset of all its items.
  std::optional<SafetensorsFile> safetensors_;
  std::map<std::string, Shape> begins_;  // of its tensors
  uint64_t safetensors_begin_ = 0;
};

}  // namespace ckptd::dcp

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DCP_ITEMS_H_
