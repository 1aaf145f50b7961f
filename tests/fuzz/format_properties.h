// Properties that every format keeps, whatever it reads.
#ifndef CKPTD_TESTS_FUZZ_FORMAT_PROPERTIES_H_
#define CKPTD_TESTS_FUZZ_FORMAT_PROPERTIES_H_

#include <cstddef>
#include <vector>

#include "common/source/format.h"
#include "common/source/piece.h"
#include "common/source/tiling.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {

// Properties that an index keeps, whatever bytes it was made of.
inline void CheckIndex(const CheckpointIndex& index) {
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    const TensorEntry& tensor = index.tensors[i];
    Require(i == 0 || index.tensors[i - 1].name < tensor.name, "tensors are sorted, once each");
    Require(tensor.group < index.groups.size(), "a tensor's group exists");
    Require(!tensor.pieces.empty(), "a tensor has a piece");
    std::vector<Box> boxes;
    for (const Piece& piece : tensor.pieces) {
      Require(piece.file < index.files.size(), "its file exists");
      Require(WhyImpossible(piece, tensor, index.files[piece.file].bytes).empty(),
              "a piece holds together");
      boxes.push_back(piece.box);
    }
    Require(WhyNoTiling(tensor.shape, boxes).empty(), "pieces are the tensor: " + tensor.name);
  }
  for (const auto& [alias, name] : index.aliases) {
    Require(index.Find(alias) != nullptr, "an alias names a tensor: " + alias);
  }
}

// Opens a source as a format does that may recognise it: refused for a reason, or an index that
// holds together.
inline void ReadAs(const CheckpointFormat& format, const Storage& storage, const Listing& listing) {
  if (!format.Recognise(storage, listing)) return;
  const absl::Status check = format.Check(storage, listing);
  if (!check.ok()) RequireGoodError(check);
  const auto opened = format.ReadIndex(storage, listing);
  if (!opened.ok()) {
    RequireGoodError(opened.status());
    Require(FactsOf(opened.status()).contains("file"), "an error names a file");
    return;
  }
  Require(check.ok(), "what is read was not refused before");
  CheckIndex(opened->index);
  const auto still = format.StillMeans(storage, listing, opened->index.files);
  Require(still.ok() && *still, "a folder means what it meant");
}

}  // namespace ckptd::fuzz

#endif  // CKPTD_TESTS_FUZZ_FORMAT_PROPERTIES_H_
