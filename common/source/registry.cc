#include "common/source/registry.h"

#include "common/source/formats/dcp/format.h"
#include "common/source/formats/deepspeed/format.h"
#include "common/source/formats/gguf/format.h"
#include "common/source/formats/offload/format.h"
#include "common/source/formats/per_rank/format.h"
#include "common/source/formats/safetensors/format.h"
#include "common/source/formats/torch/format.h"
#include "common/source/formats/torch_checkpointing/format.h"
#include "common/source/formats/unrecognised/format.h"
#include "common/source/storage/access_storage.h"
#include "common/source/storage/posix.h"
#include "common/source/storage/process_memory.h"
#include "common/source/storage/watched.h"
#include "common/source/together.h"

namespace ckptd {

namespace {

std::shared_ptr<const Storage> UnwatchedStorageOf(std::string_view path, const SourceAccess& access) {
  static const auto files = std::make_shared<const PosixStorage>();
  static const auto processes = std::make_shared<const ProcessMemoryStorage>();
  if (access.rules != nullptr || access.guest.has_value()) {
    return std::make_shared<const AccessStorage>(access);
  }
  if (path.starts_with("/proc/")) return processes;
  return files;
}

}  // namespace

std::shared_ptr<const Storage> StorageOf(std::string_view path, const SourceAccess& access) {
  std::shared_ptr<const Storage> storage = UnwatchedStorageOf(path, access);
  if (access.watch == nullptr) return storage;
  return std::make_shared<const WatchedStorage>(std::move(storage), access.watch);
}

absl::StatusOr<std::shared_ptr<const ReadableObject>> OpenObject(const std::string& path,
                                                                 const SourceAccess& access) {
  return StorageOf(path, access)->Open(path);
}

std::span<const CheckpointFormat* const> Formats() {
  static const DeepSpeedFormat deepspeed{};
  static const TorchCheckpointingFormat torch_checkpointing{};
  static const PerRankFormat per_rank{};
  static const DcpFormat dcp{};
  static const TorchFormat torch{};
  static const OffloadFormat offload{};
  static const GgufFormat gguf{};
  static const SafetensorsFormat safetensors{};
  static const TogetherFormat together{};
  static const UnrecognisedFormat unrecognised{};
  static const CheckpointFormat* const all[] = {
      &deepspeed,
      &torch_checkpointing,
      &per_rank,
      &dcp,
      &torch,
      &offload,
      &gguf,
      &safetensors,
      &together,
      &unrecognised,
  };
  return all;
}

const CheckpointFormat& FormatOf(const Storage& storage, const Listing& listing) {
  const std::span<const CheckpointFormat* const> formats = Formats();
  for (const CheckpointFormat* format : formats.first(formats.size() - 1)) {
    if (format->Recognise(storage, listing)) return *format;
  }
  if (listing.part.empty()) return *formats.back();
  // The format of the whole says which parts there are.
  Listing whole = listing;
  whole.part.clear();
  return FormatOf(storage, whole);
}

}  // namespace ckptd
