// Writes what a source holds as another checkpoint: streaming, in bounded memory, and whole or not at
// all. What the tools of ckptctl and their Python twins do.
#ifndef CKPTD_COMMON_EXPORT_EXPORT_H_
#define CKPTD_COMMON_EXPORT_EXPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/export/content.h"
#include "common/export/copy_tensor.h"
#include "common/export/shards.h"
#include "common/source/access.h"

namespace ckptd {

enum class ExportFormat { kSafetensors, kTorch, kDcp };

// "safetensors", "torch", "dcp".
std::optional<ExportFormat> ParseExportFormat(std::string_view name);

struct ExportOptions {
  ExportFormat to = ExportFormat::kSafetensors;
  // A file; else a folder, whose files have the names that loaders look for ("model.safetensors",
  // "pytorch_model.bin"; of adapters "adapter_model.safetensors", "adapter_model.bin").
  bool is_file = false;
  bool replace = false;                        // a file that is there
  // The most bytes of one file in a folder. DCP and adapters are one file always.
  uint64_t max_shard_bytes = kDefaultShardBytes;
  // Paths of files that are copied beside, under their names; for folders.
  std::vector<std::string> sidecars = {};
  OnWritten on_written = nullptr;  // bytes of tensors
};

struct ExportResult {
  std::vector<std::string> files;  // names in a folder; the file itself
  uint64_t bytes = 0;              // of tensors
};

// Takes less than 512 MiB of memory besides the index and the header. Nothing is at `target` until
// all of it is; after an error, or once on_written has said to stop, there is nothing. Blocking.
// Errors: Cancelled; those of Target, of the writers, of reading; Aborted SOURCE_CHANGED where the
// source was written to meanwhile.
absl::StatusOr<ExportResult> Export(const Content& content, const std::string& target,
                                    const ExportOptions& options);

// Whether it is an adapter of PEFT, which opens one file of a certain name.
bool IsAdapter(const CheckpointIndex& index);

// Files beside the weights of a source that is a folder which others of its kind need: config.json,
// the tokenizer's and their like; of an adapter's file its configuration. Paths, sorted. Never
// weights, indices or state of a training.
std::vector<std::string> FindSidecars(const std::string& source);

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_EXPORT_H_
