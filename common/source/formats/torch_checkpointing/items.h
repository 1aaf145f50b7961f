// Which items of a folder of torch_checkpointing are meant, and which files hold them.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_ITEMS_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_ITEMS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/formats/torch_checkpointing/metadata.h"
#include "common/source/storage.h"

namespace ckptd::torch_checkpointing {

enum class Role : uint8_t { kModel, kOptimizer, kExtra };

// The part of a training that an item is, by its name.
Role RoleOf(std::string_view item);

// An item and its files by rank. The names of files are as they are opened, relative to the folder.
struct FoundItem {
  std::string name;
  const Item* item = nullptr;  // what metadata.pkl says of it; nullptr: nothing
  std::map<uint32_t, Layout> files = {};
  std::vector<std::string> missing = {};  // files that it must have and that are not there
};

// All items: those that `metadata` has, and those that files such as model_0.pt, progress_0.json
// and model_0.safetensors are of by their names, as far as the save had these ranks. `metadata`
// outlives them; nullptr: there is none. Errors: InvalidArgument SOURCE_INVALID for paths that lead
// out of the folder, and past limits; DataLoss SOURCE_INVALID for a file of two ranks.
absl::StatusOr<std::map<std::string, FoundItem>> FindItems(const Storage& storage,
                                                           const Listing& listing,
                                                           const Metadata* metadata);

struct Choice {
  std::vector<FoundItem> items;
  bool has_prefixes = false;       // names begin with the item's
  std::vector<std::string> names;  // of the items' files, sorted
  std::string remark;              // a sentence for people; empty: there is nothing to say
};

// The items of the part that is asked for: an item's name, "model" (the default), "optimizer",
// "extra" or "all". A part that is one item has names below it. Errors: InvalidArgument
// SOURCE_INVALID as NoSuchPart, and where several items may be the model; NotFound SOURCE_NOT_FOUND
// for files that ranks must have and that are missing, as FilesMissing.
absl::StatusOr<Choice> ChooseItems(const Listing& listing,
                                   std::map<std::string, FoundItem> found);

}  // namespace ckptd::torch_checkpointing

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_CHECKPOINTING_ITEMS_H_
