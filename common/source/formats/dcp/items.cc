#include "common/source/formats/dcp/items.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/pickle/pickle.h"
#include "common/source/safetensors/sharding_info.h"
#include "common/source/text.h"
#include "common/source/torch/file.h"
#include "common/source/torch/flatten.h"

namespace ckptd::dcp {
namespace {

// Far more than states have of different ones.
constexpr size_t kMostKnown = 100'000;
// So many times the bytes of a file are read at most.
constexpr uint64_t kMostReadings = 4;
// torch's key of the only storage of a file.
constexpr char kOnlyStorage[] = "0";

std::string KeyOf(std::span<const std::byte> pickle) {
  return {reinterpret_cast<const char*>(pickle.data()), pickle.size()};
}

// A file that is a pickle and nothing else; nullopt: it must be read as a whole.
std::optional<torch::File> FileOf(std::span<const std::byte> pickle) {
  absl::StatusOr<pickle::Parsed> parsed = pickle::Parse(pickle);
  if (!parsed.ok() || parsed->bytes != pickle.size()) return std::nullopt;
  torch::File file;
  file.document = std::move(parsed->document);
  file.pickle_bytes = pickle.size();
  return file;
}

// The tensor that a pickle describes, in a storage of `bytes` bytes; nullopt: it must be read with
// its file.
std::optional<ItemTensor> Describe(std::span<const std::byte> pickle, uint64_t bytes) {
  std::optional<torch::File> file = FileOf(pickle);
  if (!file.has_value()) return std::nullopt;
  file->storages[kOnlyStorage] = {0, bytes};
  absl::StatusOr<std::optional<torch::Tensor>> tensor =
      torch::TensorOf(*file, *file->document.root);
  if (!tensor.ok() || !tensor->has_value()) return std::nullopt;
  torch::Tensor& found = **tensor;
  if (found.conjugated || found.negated) return std::nullopt;
  return ItemTensor{found.dtype, std::move(found.shape), std::move(found.strides), found.offset};
}

// `path` of a thing below the one that Flatten called kPrefix.
constexpr char kPrefix[] = "v";
std::string Below(const std::string& path) { return path.size() > 1 ? path.substr(2) : ""; }

absl::StatusOr<ObjectValues> ValuesOf(const torch::File& file) {
  CKPTD_ASSIGN_OR_RETURN(const torch::Flattened flat,
                         torch::Flatten(file, *file.document.root, kPrefix, {}, {},
                                        /*with_types=*/true));
  ObjectValues out;
  for (const auto& [path, value] : flat.values) out.values.emplace(Below(path), value);
  for (const auto& [path, name] : flat.opaque) out.opaque.emplace(Below(path), name);
  for (const auto& [path, types] : flat.types) out.types.emplace(Below(path), types);
  return out;
}

bool IsAboutContent(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return reason == reason::kSourceInvalid || reason == reason::kSourceUnsupported;
}

std::string Described(const ItemTensor& tensor) {
  return fmt::format("{} of ({})", NameOf(tensor.dtype), fmt::join(tensor.shape, ", "));
}

}  // namespace

ItemReader::ItemReader(std::shared_ptr<const ReadableObject> object,
                       std::span<const uint64_t> offsets, KnownPickles& known)
    : part_{object, 0, object->size()}, heads_(part_, offsets, kHeadBytes), known_(known) {}

SourceFile ItemReader::file() const {
  SourceFile file = part_.object->identity();
  file.header_hash = hash_.Value();
  return file;
}

absl::Status ItemReader::Check(const Item& item) const {
  if (!item.transform.empty()) {
    return part_.Unsupported(fmt::format(
        "its items were put through {} (an extension of torch's FileSystemWriter), which is not "
        "read; save without _extensions, or read it with torch and save it again",
        Quoted(Escape(item.transform))));
  }
  if (item.offset > part_.bytes || item.bytes > part_.bytes - item.offset) {
    return part_.Invalid(fmt::format("it ends after {} bytes, within or before an item of {} bytes "
                                     "at byte {}; finish the copy or the download",
                                     part_.bytes, item.bytes, item.offset));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> ItemReader::HeadOf(const Item& item) {
  CKPTD_RETURN_IF_ERROR(Check(item));
  return heads_.Get(item.offset, static_cast<size_t>(std::min<uint64_t>(item.bytes, kHeadBytes)));
}

absl::StatusOr<torch::File> ItemReader::ReadWhole(const Item& item) {
  // Items of others may lie one in the other, but not without end.
  const uint64_t most = CheckedMultiply(kMostReadings, part_.bytes).value_or(UINT64_MAX);
  if (item.bytes > most - read_bytes_) {
    return part_.Invalid("its items lie in each other, and no writer puts them so; save the "
                         "checkpoint again");
  }
  read_bytes_ += item.bytes;
  return torch::ReadFile(part_.object, item.offset, item.bytes);
}

absl::StatusOr<ItemTensor> ItemReader::ReadZip(const Item& item, const std::optional<Head>& head,
                                               uint64_t bytes) {
  if (head.has_value() && head->data.has_value()) {
    hash_.Update(head->pickle);
    auto known = known_.tensors.find(KeyOf(head->pickle));
    if (known == known_.tensors.end()) {
      const std::optional<ItemTensor> tensor = Describe(head->pickle, bytes);
      if (tensor.has_value()) {
        if (known_.tensors.size() == kMostKnown) known_.tensors.clear();
        known = known_.tensors.emplace(KeyOf(head->pickle),
                                       KnownPickles::Described{*tensor, bytes}).first;
      }
    }
    const bool fits = known != known_.tensors.end() && known->second.storage_bytes == bytes &&
                      *head->data <= item.bytes && bytes <= item.bytes - *head->data;
    if (fits) {
      ItemTensor out = known->second.tensor;
      out.offset += item.offset + *head->data;
      out.big_endian = head->big_endian;
      return out;
    }
  }
  CKPTD_ASSIGN_OR_RETURN(const torch::File file, ReadWhole(item));
  CKPTD_ASSIGN_OR_RETURN(std::optional<torch::Tensor> tensor,
                         torch::TensorOf(file, *file.document.root));
  if (!tensor.has_value() || tensor->conjugated || tensor->negated) {
    const std::string what =
        tensor.has_value() ? "a view whose values are changed while it is read"
                           : "a " + Quoted(Escape(file.document.root->ClassName()));
    return part_.Unsupported(fmt::format("its item at byte {} holds {}, no plain tensor; save plain "
                                         "ones",
                                         item.offset, what));
  }
  return ItemTensor{tensor->dtype, std::move(tensor->shape), std::move(tensor->strides),
                    tensor->offset, file.big_endian};
}

absl::StatusOr<ItemTensor> ItemReader::ReadSafetensors(const Item& item, std::string_view key,
                                                       const Box& box) {
  if (!safetensors_.has_value() || safetensors_begin_ != item.offset) {
    CKPTD_ASSIGN_OR_RETURN(safetensors_, ReadSafetensorsObject(*part_.object, item.offset));
    absl::StatusOr<std::map<std::string, Shape>> begins = ReadShardingInfo(safetensors_->header);
    if (!begins.ok()) return WithFact(begins.status(), "file", part_.object->path());
    begins_ = *std::move(begins);
    safetensors_begin_ = item.offset;
    hash_.Update(std::as_bytes(std::span(&safetensors_->file.header_hash, 1)));
  }
  const std::vector<HeaderTensor>& tensors = safetensors_->header.tensors;
  const auto tensor = std::lower_bound(
      tensors.begin(), tensors.end(), key,
      [](const HeaderTensor& one, std::string_view name) { return one.name < name; });
  const bool is_there = tensor != tensors.end() && tensor->name == key;
  const auto begin = is_there ? begins_.find(tensor->name) : begins_.end();
  if (!is_there || (begin != begins_.end() && begin->second != box.offsets)) {
    return part_.Invalid(fmt::format(
        "it does not hold the chunk of {} at ({}); torch keeps one chunk of a tensor in such a "
        "file: save it again without serialization_format=SAFETENSORS",
        Quoted(Escape(key)), fmt::join(box.offsets, ", ")));
  }
  return ItemTensor{tensor->dtype, tensor->shape, {}, safetensors_->data_start + tensor->begin};
}

absl::StatusOr<ItemTensor> ItemReader::ReadTensor(const Item& item, std::string_view key,
                                                  Dtype dtype, const Box& box) {
  const uint64_t bytes = CheckedBytes(ElementCount(box.extents), BitsOf(dtype)).value_or(0);
  CKPTD_RETURN_IF_ERROR(Check(item));
  // The length of an item in safetensors is that of its elements, wherever these are.
  const size_t start_bytes = kHeaderLengthBytes + 1;
  std::span<const std::byte> start;
  if (part_.bytes - item.offset >= start_bytes) {
    CKPTD_ASSIGN_OR_RETURN(start, heads_.Get(item.offset, start_bytes));
  }
  absl::StatusOr<ItemTensor> tensor;
  if (!start.empty() && start.back() == std::byte{'{'}) {
    tensor = ReadSafetensors(item, key, box);
  } else {
    CKPTD_ASSIGN_OR_RETURN(const std::span<const std::byte> head, HeadOf(item));
    tensor = ReadZip(item, ReadHead(head), bytes);
  }
  if (!tensor.ok()) {
    return WithFact(WithContext(tensor.status(), "reading a chunk of " + Quoted(Escape(key))),
                    "file", part_.object->path());
  }
  if (tensor->dtype == dtype && tensor->shape == box.extents) return tensor;
  return part_.Invalid(fmt::format("its item at byte {} is {}, where .metadata has a chunk of {} "
                                   "that is {}; save or copy the checkpoint again",
                                   item.offset, Described(*tensor), Quoted(Escape(key)),
                                   Described({dtype, box.extents, {}, 0, false})));
}

absl::StatusOr<ObjectValues> ItemReader::ReadObject(const Item& item) {
  CKPTD_ASSIGN_OR_RETURN(const std::span<const std::byte> start, HeadOf(item));
  const std::optional<Head> head = ReadHead(start);
  std::string key;
  if (head.has_value() && !head->data.has_value()) {
    hash_.Update(head->pickle);
    key = KeyOf(head->pickle);
    if (const auto known = known_.objects.find(key); known != known_.objects.end()) {
      return known->second;
    }
  }
  // Names can share an item: they stand one behind the other.
  const std::pair<uint64_t, uint64_t> place = {item.offset, item.bytes};
  if (last_object_.has_value() && last_object_->first == place) return last_object_->second;
  const absl::StatusOr<torch::File> file = ReadWhole(item);
  absl::StatusOr<ObjectValues> values = file.ok() ? ValuesOf(*file) : file.status();
  if (!values.ok()) {
    if (!IsAboutContent(values.status())) return values.status();
    values = ObjectValues{{}, {{"", "bytes"}}, {}};
  }
  if (!key.empty()) {
    if (known_.objects.size() == kMostKnown) known_.objects.clear();
    known_.objects.emplace(std::move(key), *values);
  }
  last_object_.emplace(place, *values);
  return values;
}

}  // namespace ckptd::dcp
