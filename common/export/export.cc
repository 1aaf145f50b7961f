#include "common/export/export.h"

#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "common/export/dcp_folder.h"
#include "common/export/output_file.h"
#include "common/export/safetensors_file.h"
#include "common/export/target.h"
#include "common/export/torch_file.h"
#include "common/source/open.h"
#include "common/source/registry.h"

namespace ckptd {
namespace {

constexpr char kSafetensorsName[] = "model.safetensors";
constexpr char kTorchName[] = "pytorch_model.bin";
constexpr char kSafetensorsAdapter[] = "adapter_model.safetensors";
constexpr char kTorchAdapter[] = "adapter_model.bin";
constexpr char kIndexSuffix[] = ".index.json";

using Tensors = std::vector<const OutTensor*>;

// Safetensors has one of the names that share a tensor, as its save_model keeps it: the first in
// the alphabet. The others are metadata.
Content WithoutAliases(Content content, std::map<std::string, std::string>& kept_of) {
  for (OutTensor& tensor : content.tensors) {
    if (tensor.aliases.empty()) continue;
    if (tensor.aliases.front() < tensor.name) std::swap(tensor.aliases.front(), tensor.name);
    for (std::string& alias : tensor.aliases) kept_of.emplace(std::move(alias), tensor.name);
    tensor.aliases.clear();
  }
  return content;
}

// Writes one export into its target.
class Writer {
 public:
  Writer(const Content& content, const ExportOptions& options, const Target& target)
      : content_(content), options_(options), target_(target),
        copier_(*content.index, options.on_written) {}

  absl::StatusOr<std::vector<std::string>> Write(const std::string& file_name) {
    if (options_.to == ExportFormat::kDcp) {
      files_ = {kDcpFile, kDcpMetadata};
      CKPTD_RETURN_IF_ERROR(WriteDcp(target_.PathOf(kDcpFile), target_.PathOf(kDcpMetadata),
                                     content_, copier_));
    } else if (options_.is_file) {
      Tensors all;
      for (const OutTensor& tensor : content_.tensors) all.push_back(&tensor);
      CKPTD_RETURN_IF_ERROR(WriteFile(file_name, all, true));
    } else {
      CKPTD_RETURN_IF_ERROR(WriteShards());
    }
    for (const std::string& path : options_.sidecars) CKPTD_RETURN_IF_ERROR(CopySidecar(path));
    return std::move(files_);
  }

  std::map<std::string, std::string> kept_of;  // alias -> tensor, for safetensors

 private:
  absl::Status WriteFile(const std::string& name, const Tensors& tensors, bool alone) {
    files_.push_back(name);
    if (options_.to == ExportFormat::kTorch) {
      return WriteTorchFile(target_.PathOf(name), tensors, copier_);
    }
    std::map<std::string, std::string> metadata = content_.metadata;
    if (alone) metadata.insert(kept_of.begin(), kept_of.end());
    return WriteSafetensors(target_.PathOf(name), tensors, metadata, copier_);
  }

  absl::Status WriteShards() {
    const bool adapter = IsAdapter(*content_.index);
    const std::string base = options_.to == ExportFormat::kTorch
                                 ? (adapter ? kTorchAdapter : kTorchName)
                                 : (adapter ? kSafetensorsAdapter : kSafetensorsName);
    const uint64_t limit =
        adapter ? std::numeric_limits<uint64_t>::max() : options_.max_shard_bytes;
    const auto shards = SplitIntoShards(content_.tensors, limit);
    std::map<std::string, std::string> file_of;
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string name = ShardName(base, i, shards.size());
      Tensors tensors;
      for (const size_t number : shards[i]) {
        const OutTensor& tensor = content_.tensors[number];
        tensors.push_back(&tensor);
        file_of[tensor.name] = name;
        for (const std::string& alias : tensor.aliases) file_of[alias] = name;
      }
      CKPTD_RETURN_IF_ERROR(WriteFile(name, tensors, shards.size() == 1));
    }
    if (shards.size() == 1) return absl::OkStatus();
    files_.push_back(base + kIndexSuffix);
    return WriteText(files_.back(), IndexJson(content_.bytes(), kept_of, file_of));
  }

  absl::Status WriteText(const std::string& name, const std::string& text) {
    CKPTD_ASSIGN_OR_RETURN(OutputFile out, OutputFile::Create(target_.PathOf(name)));
    CKPTD_RETURN_IF_ERROR(out.Append(text));
    return out.Finish();
  }

  absl::Status CopySidecar(const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(const auto object, OpenObject(path));
    const std::string name = std::filesystem::path(path).filename().string();
    CKPTD_ASSIGN_OR_RETURN(OutputFile out, OutputFile::Create(target_.PathOf(name)));
    CKPTD_RETURN_IF_ERROR(out.AppendFrom(*object, 0, object->size()));
    files_.push_back(name);
    return out.Finish();
  }

  const Content& content_;
  const ExportOptions& options_;
  const Target& target_;
  TensorCopier copier_;
  std::vector<std::string> files_;
};

// All that can be refused is refused here, before the first byte is written.
absl::Status Check(const Content& content, ExportFormat to) {
  for (const OutTensor& tensor : content.tensors) {
    if (tensor.from->kind == EntryKind::kObject && to == ExportFormat::kDcp) continue;
    CKPTD_RETURN_IF_ERROR(to == ExportFormat::kSafetensors ? CheckForSafetensors(tensor)
                                                           : CheckForTorch(tensor));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<ExportFormat> ParseExportFormat(std::string_view name) {
  if (name == "safetensors") return ExportFormat::kSafetensors;
  if (name == "torch") return ExportFormat::kTorch;
  if (name == "dcp") return ExportFormat::kDcp;
  return std::nullopt;
}

absl::StatusOr<ExportResult> Export(const Content& content, const std::string& target,
                                    const ExportOptions& options) {
  std::map<std::string, std::string> kept_of;
  Content written = content;
  if (options.to == ExportFormat::kSafetensors) {
    written = WithoutAliases(std::move(written), kept_of);
    written.metadata.insert({"format", "pt"});
  }
  CKPTD_RETURN_IF_ERROR(Check(written, options.to));
  const Target::Kind kind = !options.is_file  ? Target::Kind::kFolder
                            : options.replace ? Target::Kind::kReplaced
                                              : Target::Kind::kFile;
  CKPTD_ASSIGN_OR_RETURN(Target whole, Target::Create(target, kind, written.bytes()));
  Writer writer(written, options, whole);
  writer.kept_of = std::move(kept_of);
  ExportResult result;
  result.bytes = written.bytes();
  CKPTD_ASSIGN_OR_RETURN(result.files,
                         writer.Write(std::filesystem::path(target).filename().string()));
  CKPTD_RETURN_IF_ERROR(CheckUnchanged(*content.index));
  CKPTD_RETURN_IF_ERROR(whole.Commit());
  return result;
}

}  // namespace ckptd
