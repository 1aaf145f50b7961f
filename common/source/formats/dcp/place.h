// Where the .metadata of a source lies.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DCP_PLACE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DCP_PLACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/storage.h"

namespace ckptd::dcp {

inline constexpr char kMetadata[] = ".metadata";

// Whether a source is a torch distributed checkpoint: a folder with .metadata, a pickle of that
// name, or a folder of accelerate with a folder below for the part that was asked for. Also one of
// Megatron-Core's zarr form, which stands for the same.
bool IsDcp(const Storage& storage, const Listing& listing);

struct Place {
  Listing folder;      // the one that has .metadata; its part is the one that was asked for
  std::string remark;  // a sentence for people; empty: there is nothing to say
};

// Errors: those of Storage; NotFound SOURCE_NOT_FOUND for a folder below that has no .metadata;
// Unimplemented SOURCE_UNSUPPORTED for saves of ranks on their own and for Megatron-Core's zarr.
absl::StatusOr<Place> FindPlace(const Storage& storage, const Listing& listing);

}  // namespace ckptd::dcp

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DCP_PLACE_H_
