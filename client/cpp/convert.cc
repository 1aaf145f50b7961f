#include "client/cpp/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "common/wire/source_table.h"

namespace ckptd {
inline namespace client {
namespace {

constexpr uint64_t kSlabAlignment = 512;
constexpr uint32_t kMaxShapeRank = 256;
constexpr size_t kMaxTensors = size_t{1} << 26;

absl::StatusOr<Dtype> DtypeOf(int value, const std::string& name) {
  if (value <= 0 || value >= kDtypeCount) {
    return BadAnswer(fmt::format("tensor {} has a dtype this client does not know", name));
  }
  return static_cast<Dtype>(value);
}

// Takes the next tensor's shape from the concatenated ones.
template <typename Dims>
absl::StatusOr<Shape> NextShape(uint32_t rank, const Dims& dims, int& at, const std::string& name) {
  if (rank > kMaxShapeRank || dims.size() - at < static_cast<int>(rank)) {
    return BadAnswer(fmt::format("the shape of tensor {} is cut off", name));
  }
  Shape shape(dims.begin() + at, dims.begin() + at + static_cast<int>(rank));
  at += static_cast<int>(rank);
  return shape;
}

// Bytes of a dense tensor. Nullopt if they exceed 64 bits.
std::optional<uint64_t> DenseBytes(Dtype dtype, const Shape& shape) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max() / 64;
  uint64_t elements = 1;
  for (const uint64_t size : shape) {
    if (size == 0) return 0;
  }
  for (const uint64_t size : shape) {
    if (elements > kMost / size) return std::nullopt;
    elements *= size;
  }
  return (elements * BitsOf(dtype) + 7) / 8;
}

absl::Status CheckColumns(const v1::TensorTable& page) {
  const int count = page.names_size();
  if (page.dtypes_size() != count || page.ranks_of_shape_size() != count ||
      page.offsets_size() != count || page.bytes_size() != count ||
      page.padded_bytes_size() != count ||
      (page.digests_size() != 0 && page.digests_size() != count) ||
      page.alias_names_size() != page.alias_tensors_size() ||
      page.flat_dtypes_size() != page.flat_names_size() ||
      page.flat_offsets_size() != page.flat_names_size() ||
      page.flat_elements_size() != page.flat_names_size()) {
    return BadAnswer("the columns of its tensor table differ in length");
  }
  return absl::OkStatus();
}

absl::Status CheckPlace(const ShardTensor& tensor, uint64_t slab_bytes) {
  if (DenseBytes(tensor.dtype, tensor.shape) != tensor.bytes) {
    return BadAnswer(fmt::format("the {} bytes of tensor {} do not follow from its dtype and shape",
                                 tensor.bytes, tensor.name));
  }
  // Members of flat parameters are not padded, so they are aligned to elements only.
  const uint64_t alignment = std::max(BitsOf(tensor.dtype) / 8, 1u);
  if (tensor.offset % alignment != 0 || tensor.padded_bytes < tensor.bytes ||
      tensor.padded_bytes > slab_bytes || tensor.offset > slab_bytes - tensor.padded_bytes) {
    return BadAnswer(fmt::format("tensor {} lies at {} + {} of a slab of {} bytes", tensor.name,
                                 tensor.offset, tensor.padded_bytes, slab_bytes));
  }
  return absl::OkStatus();
}

absl::Status AppendFlats(const v1::TensorTable& page, uint64_t slab_bytes, ShardTable& out) {
  for (int i = 0; i < page.flat_names_size(); ++i) {
    ShardFlat flat;
    flat.name = page.flat_names(i);
    CKPTD_ASSIGN_OR_RETURN(flat.dtype, DtypeOf(page.flat_dtypes(i), flat.name));
    flat.offset = page.flat_offsets(i);
    flat.elements = page.flat_elements(i);
    const auto bytes = DenseBytes(flat.dtype, {flat.elements});
    if (!bytes.has_value() || flat.offset % kSlabAlignment != 0 || *bytes > slab_bytes ||
        flat.offset > slab_bytes - *bytes) {
      return BadAnswer(fmt::format("flat parameter {} lies at {} of a slab of {} bytes", flat.name,
                                   flat.offset, slab_bytes));
    }
    if (out.flats.size() == kMaxTensors) return BadAnswer("it lists too many flat parameters");
    out.flats.push_back(std::move(flat));
  }
  return absl::OkStatus();
}

// What comes with the first page.
void BeginSource(const v1::InspectCheckpointResponse& page, SourceInfo& out) {
  out.index.source = PathOfText(page.index().source());
  out.identity = page.source_identity();
  out.tensor_count = page.tensor_count();
  out.tensor_bytes = page.tensor_bytes();
  out.value_count = page.value_count();
  out.opaque_count = page.opaque_count();
  out.index.format = page.index().format();
  out.index.metadata.insert(page.index().metadata().begin(), page.index().metadata().end());
  for (const v1::SourceFile& file : page.index().files()) {
    out.index.files.push_back({.path = PathOfText(file.path()), .bytes = file.bytes()});
  }
  out.remarks.assign(page.remarks().begin(), page.remarks().end());
}

}  // namespace

absl::Status BadAnswer(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidReply,
                   fmt::format("reading the daemon's answer: {}; client and daemon do not fit "
                               "together, update the older one",
                               why));
}

absl::Status AppendTensors(const v1::TensorTable& page, uint64_t slab_bytes, ShardTable& out) {
  CKPTD_RETURN_IF_ERROR(CheckColumns(page));
  const size_t first = out.tensors.size();
  if (static_cast<size_t>(page.names_size()) > kMaxTensors - first) {
    return BadAnswer("it lists too many tensors");
  }
  out.tensors.reserve(first + static_cast<size_t>(page.names_size()));
  int dims_at = 0;
  for (int i = 0; i < page.names_size(); ++i) {
    ShardTensor tensor;
    tensor.name = page.names(i);
    CKPTD_ASSIGN_OR_RETURN(tensor.dtype, DtypeOf(page.dtypes(i), tensor.name));
    CKPTD_ASSIGN_OR_RETURN(
        tensor.shape, NextShape(page.ranks_of_shape(i), page.dims(), dims_at, tensor.name));
    tensor.offset = page.offsets(i);
    tensor.bytes = page.bytes(i);
    tensor.padded_bytes = page.padded_bytes(i);
    if (page.digests_size() != 0) tensor.digest = page.digests(i);
    CKPTD_RETURN_IF_ERROR(CheckPlace(tensor, slab_bytes));
    out.tensors.push_back(std::move(tensor));
  }
  if (dims_at != page.dims_size()) return BadAnswer("its tensor table has more sizes than tensors");
  for (int i = 0; i < page.alias_names_size(); ++i) {
    if (page.alias_tensors(i) >= static_cast<uint32_t>(page.names_size())) {
      return BadAnswer(fmt::format("the alias {} names no tensor", page.alias_names(i)));
    }
    out.aliases.emplace_back(page.alias_names(i),
                             static_cast<uint32_t>(first) + page.alias_tensors(i));
  }
  CKPTD_RETURN_IF_ERROR(AppendFlats(page, slab_bytes, out));
  out.unexpected.insert(out.unexpected.end(), page.unexpected_names().begin(),
                        page.unexpected_names().end());
  return absl::OkStatus();
}

absl::Status AppendSource(const v1::InspectCheckpointResponse& page, SourceInfo& out) {
  if (out.index.files.empty()) BeginSource(page, out);
  if (page.source_identity() != out.identity) {
    return MakeError(absl::StatusCode::kAborted, reason::kSourceChanged,
                     fmt::format("inspecting {}: its files, or their links, owner or mode, have "
                                 "changed between two pages of its tensors; inspect it again",
                                 out.index.source));
  }
  const v1::SourceTable& tensors = page.index().tensors();
  if (static_cast<size_t>(tensors.names_size()) > kMaxTensors - out.index.tensors.size()) {
    return BadAnswer("it lists too many tensors");
  }
  const std::string wrong = ReadSourceTable(tensors, out.index);
  if (!wrong.empty()) return BadAnswer("its table of the source does not hold: " + wrong);
  out.index.values.insert(page.index().values().begin(), page.index().values().end());
  out.index.opaque.insert(page.index().opaque().begin(), page.index().opaque().end());
  if (out.index.values.size() > kMaxSourceValues || out.index.opaque.size() > kMaxSourceValues) {
    return BadAnswer("it lists too many values");
  }
  return absl::OkStatus();
}

namespace {

absl::Status TakeMemfd(const v1::AcquireShardResponse& response, AttachRequest& out) {
  if (!response.has_memfd()) return BadAnswer("it offers memory of a kind this client cannot map");
  out.fd_socket = response.memfd().fd_socket();
  out.segment_bytes.assign(response.memfd().segment_bytes().begin(),
                           response.memfd().segment_bytes().end());
  uint64_t total = 0;
  for (const uint64_t bytes : out.segment_bytes) {
    if (bytes == 0 || bytes > response.slab_bytes() - total) {
      return BadAnswer("the segments are larger than the slab");
    }
    total += bytes;
  }
  if (total != response.slab_bytes()) return BadAnswer("the segments do not make up the slab");
  return absl::OkStatus();
}

// For both kinds of device memory.
template <typename Handle>
absl::Status TakeDevice(const Handle& handle, const v1::AcquireShardResponse& response,
                        AttachRequest& out) {
  out.fd_socket = handle.fd_socket();
  out.device_uuid = handle.device_uuid();
  if (out.device_uuid.empty()) return BadAnswer("it offers device memory and names no device");
  if (handle.allocation_bytes() < response.slab_bytes() ||
      (handle.allocation_bytes() > 0 && response.slab_bytes() == 0)) {
    return BadAnswer("the allocation does not fit the slab");
  }
  if (response.slab_bytes() > 0) out.segment_bytes = {handle.allocation_bytes()};
  return absl::OkStatus();
}

absl::Status TakeCudaIpc(const v1::AcquireShardResponse& response, AttachRequest& out) {
  constexpr size_t kHandleBytes = 64;
  CKPTD_RETURN_IF_ERROR(TakeDevice(response.cuda_ipc(), response, out));
  out.ipc_handle = response.cuda_ipc().handle();
  if (out.ipc_handle.size() == (response.slab_bytes() > 0 ? kHandleBytes : 0)) {
    return absl::OkStatus();
  }
  return BadAnswer(fmt::format("its handle of device memory has {} bytes", out.ipc_handle.size()));
}

absl::Status TakeHandle(const v1::AcquireShardResponse& response, AttachRequest& out) {
  if (response.has_vmm_fd()) return TakeDevice(response.vmm_fd(), response, out);
  return response.has_cuda_ipc() ? TakeCudaIpc(response, out) : TakeMemfd(response, out);
}

}  // namespace

absl::StatusOr<AttachRequest> ToAttachRequest(const v1::AcquireShardResponse& response) {
  AttachRequest out;
  out.token = response.token();
  out.slab_bytes = response.slab_bytes();
  CKPTD_RETURN_IF_ERROR(TakeHandle(response, out));
  switch (response.mode()) {
    case v1::ATTACH_MODE_SHARED:
    case v1::ATTACH_MODE_PRIVATE:
    case v1::ATTACH_MODE_EXCLUSIVE:
      out.mode = static_cast<AttachMode>(response.mode());
      break;
    default:
      return BadAnswer("it lends the shard in a mode this client does not know");
  }
  return out;
}

}  // namespace client
}  // namespace ckptd
