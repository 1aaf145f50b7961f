#include "common/export/torch_file.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/export/pickle_writer.h"
#include "common/export/zip_writer.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

constexpr char kRoot[] = "archive";

absl::Status Unsupported(const OutTensor& tensor, std::string_view why) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kTargetInvalid,
                   fmt::format("writing tensor {} for torch: {}", Quoted(tensor.name), why),
                   {{"tensor", tensor.name}});
}

// The records that torch puts in front of the storages and behind them.
absl::Status AddHead(const std::string& pickle, ZipWriter& zip) {
  CKPTD_RETURN_IF_ERROR(zip.Add("data.pkl", pickle));
  CKPTD_RETURN_IF_ERROR(zip.Add(".format_version", "1"));
  CKPTD_RETURN_IF_ERROR(zip.Add(".storage_alignment", std::to_string(ZipWriter::kAlignment)));
  return zip.Add("byteorder", "little");
}
absl::Status AddTail(ZipWriter& zip) {
  CKPTD_RETURN_IF_ERROR(zip.Add("version", "3\n"));
  return zip.Finish();
}

absl::Status AddStorage(const OutTensor& tensor, size_t key, TensorCopier& copier, OutputFile& out,
                        ZipWriter& zip) {
  CKPTD_RETURN_IF_ERROR(zip.Begin(fmt::format("data/{}", key), tensor.bytes));
  uint32_t crc = 0;
  CKPTD_RETURN_IF_ERROR(copier.Append(tensor, out, &crc));
  return zip.End(crc);
}

std::string PickleOf(const std::vector<const OutTensor*>& tensors) {
  PickleWriter pickle;
  pickle.EmptyDict();
  pickle.Mark();
  const auto add = [&](const std::string& name, size_t key) {
    pickle.Text(name);
    AddTensor(tensors[key]->dtype, tensors[key]->from->shape, std::to_string(key), pickle);
  };
  for (size_t key = 0; key < tensors.size(); ++key) add(tensors[key]->name, key);
  for (size_t key = 0; key < tensors.size(); ++key) {
    for (const std::string& alias : tensors[key]->aliases) add(alias, key);
  }
  pickle.SetItems();
  return pickle.Finish();
}

}  // namespace

absl::Status CheckForTorch(const OutTensor& tensor) {
  const Shape& shape = tensor.from->shape;
  if (TorchName(tensor.dtype).empty()) {
    return Unsupported(tensor, fmt::format("torch has no dtype {}; leave it out with --exclude, or "
                                           "write another format with --to safetensors",
                                           NameOf(tensor.dtype)));
  }
  if (tensor.dtype == Dtype::kF4 && (shape.empty() || shape.back() % 2 != 0)) {
    return Unsupported(tensor, "torch counts pairs of its elements, and there is half a pair; leave "
                               "it out with --exclude");
  }
  if (ValidUtf8Prefix(tensor.name) != tensor.name.size()) {
    return Unsupported(tensor, "the name is not UTF-8; --rename gives it another");
  }
  return absl::OkStatus();
}

absl::Status WriteTorchFile(const std::string& path, const std::vector<const OutTensor*>& tensors,
                            TensorCopier& copier) {
  for (const OutTensor* tensor : tensors) CKPTD_RETURN_IF_ERROR(CheckForTorch(*tensor));
  CKPTD_ASSIGN_OR_RETURN(OutputFile out, OutputFile::Create(path));
  ZipWriter zip(out, kRoot);
  CKPTD_RETURN_IF_ERROR(AddHead(PickleOf(tensors), zip));
  for (size_t key = 0; key < tensors.size(); ++key) {
    CKPTD_RETURN_IF_ERROR(AddStorage(*tensors[key], key, copier, out, zip));
  }
  CKPTD_RETURN_IF_ERROR(AddTail(zip));
  return out.Finish();
}

absl::Status AppendTorchItem(const OutTensor& tensor, TensorCopier& copier, OutputFile& out) {
  CKPTD_RETURN_IF_ERROR(CheckForTorch(tensor));
  PickleWriter pickle;
  AddTensor(tensor.dtype, tensor.from->shape, "0", pickle);
  ZipWriter zip(out, kRoot);
  CKPTD_RETURN_IF_ERROR(AddHead(pickle.Finish(), zip));
  CKPTD_RETURN_IF_ERROR(AddStorage(tensor, 0, copier, out, zip));
  return AddTail(zip);
}

}  // namespace ckptd
