// Which part of a training state is meant, and what its entries are called. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DCP_PART_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DCP_PART_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/formats/dcp/metadata.h"
#include "common/source/index.h"

namespace ckptd::dcp {

struct Chosen {
  const Stored* stored = nullptr;
  std::string name;    // what the index calls it
  uint32_t group = 0;  // number in Part::groups
  EntryKind kind = EntryKind::kParameter;
};

struct Part {
  std::vector<Chosen> entries;  // in the order of `stored`; their names are unique
  std::vector<std::string> groups = {""};
  std::string remark;  // a sentence for people: what was taken; empty: all, as it is called
};

// The entries that belong to listing.part. A state dict of several levels has a group for each key
// of its first one ("model", "lr_scheduler"); where nobody noted the levels, the name up to its
// first dot counts if it is a usual one. Parts are:
//   model       the group called so, without that prefix; where there is none, all that is neither
//               an optimizer's nor known to be something else. It is the default.
//   optimizer   all groups called so. It is the default where there is nothing else.
//   extra       the rest
//   all         everything, by its full name
//   and every other group by its name.
// A part that is one group loses that prefix. Errors: NoSuchPart.
absl::StatusOr<Part> ChoosePart(const Listing& listing, std::span<const Stored> stored);

}  // namespace ckptd::dcp

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DCP_PART_H_
