// The storages and formats that there are. Nothing else names one.
#ifndef CKPTD_COMMON_SOURCE_REGISTRY_H_
#define CKPTD_COMMON_SOURCE_REGISTRY_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/source/access.h"
#include "common/source/format.h"
#include "common/source/storage.h"

namespace ckptd {

// The storage that has what lies at this path, as `access` lets it be read.
std::shared_ptr<const Storage> StorageOf(std::string_view path, const SourceAccess& access = {});

// StorageOf(path, access)->Open(path).
absl::StatusOr<std::shared_ptr<const ReadableObject>> OpenObject(const std::string& path,
                                                                 const SourceAccess& access = {});

// In the order in which they are asked.
std::span<const CheckpointFormat* const> Formats();

// The first format that recognises the source; where none does, the last one, whose error then
// says what the source is instead.
const CheckpointFormat& FormatOf(const Storage& storage, const Listing& listing);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_REGISTRY_H_
