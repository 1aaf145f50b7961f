// Reads the files of an item, and puts the ranks' tensors together.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_READ_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_READ_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/formats/torch_checkpointing/items.h"
#include "common/source/storage.h"

namespace ckptd::torch_checkpointing {

// Where an item is read from and to.
struct Reading {
  const Storage& storage;
  std::string folder;
  uint32_t ranks = 0;     // of the save
  std::string prefix;     // of all names; empty: none
  const Choice& choice;   // its names are the files of the index, in their order
  std::map<std::string, SourceFile>& files;  // by name: gets those that were read
};

// The tensors and values of an item. Names begin with "rank_N" if it is neither a model nor an
// optimizer, several ranks have it, and nothing says how it belongs together. Errors: as of
// CheckpointFormat::ReadIndex; NotFound SOURCE_NOT_FOUND for ranks that DTensors name and that have
// no file.
absl::StatusOr<OpenedCheckpoint> ReadItem(const Reading& reading, const FoundItem& found);

}  // namespace ckptd::torch_checkpointing

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_READ_H_
