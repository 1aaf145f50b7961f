// Makes an index of a .metadata and of the files that it names.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DCP_BUILDER_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DCP_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/formats/dcp/items.h"
#include "common/source/formats/dcp/metadata.h"
#include "common/source/formats/dcp/part.h"
#include "common/source/index.h"
#include "common/source/storage.h"

namespace ckptd::dcp {

// Not thread-safe. What it is made with outlives it.
class Builder {
 public:
  // `folder` is the one that the files are in.
  Builder(const Storage& storage, const Listing& folder, const Metadata& metadata)
      : storage_(storage), folder_(folder), metadata_(metadata) {}

  // Takes the entries of a part, and sees to it that their files are there. Reads no file. Errors,
  // here and below: those of Metadata, and of CheckpointFormat::ReadIndex; "file" may be missing.
  absl::Status Add(const Part& part);

  // Finds every tensor in its file, and looks into objects. Opens each file once, and reads in
  // their order.
  absl::StatusOr<CheckpointIndex> Build();

 private:
  // An item, and what it holds.
  struct Wanted {
    Item item;
    uint32_t file = 0;    // of files_
    uint32_t tensor = 0;  // of the index
    uint32_t chunk = 0;   // of the tensor's; objects have none
    uint32_t piece = 0;   // of the tensor's: the first that lies in the item
    uint32_t pieces = 0;
  };

  // The key and the chunks that a tensor of the index is made of.
  struct Source {
    std::string key;
    std::vector<Box> chunks = {};              // as they are stored
    std::optional<bool> big_endian = {};  // once a chunk was found
  };

  absl::Status AddTensor(const Chosen& chosen);
  absl::Status AddObject(const Chosen& chosen);
  absl::Status AddPieces(TensorEntry& entry, const StoredTensor& stored);
  absl::Status NumberFiles();
  absl::Status FindFiles() const;
  absl::Status ReadFile(uint32_t file, size_t first, size_t end);
  absl::Status PlaceTensor(const Wanted& wanted, const ItemTensor& tensor);
  absl::Status AddValues(const std::string& name, const ObjectValues& values);

  const Storage& storage_;
  const Listing& folder_;
  const Metadata& metadata_;
  CheckpointIndex index_;
  std::vector<Source> sources_;  // as the tensors of the index
  std::vector<Wanted> wanted_;
  std::vector<std::string> files_;  // relative to the folder, sorted
  size_t pieces_ = 0;
  KnownPickles known_;
};

}  // namespace ckptd::dcp

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DCP_BUILDER_H_
