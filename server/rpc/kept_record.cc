#include "server/rpc/kept_record.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

// Also of one that has no tensors: its table may have unexpected names.
void AddPages(const Shard& shard, v1::KeptCheckpoint& out) {
  size_t row = 0;
  do {
    *out.add_pages() = TensorPage(shard, row, 0, row);
  } while (row != 0);
}

absl::Status Wrong(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                   "reading its record: " + why + "; load it again");
}

std::chrono::system_clock::time_point TimeFrom(const google::protobuf::Timestamp& time) {
  return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
      std::chrono::seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos())));
}

bool ColumnsHold(const v1::TensorTable& page) {
  const int count = page.names_size();
  return page.dtypes_size() == count && page.ranks_of_shape_size() == count &&
         page.offsets_size() == count && page.bytes_size() == count &&
         page.padded_bytes_size() == count &&
         (page.digests_size() == 0 || page.digests_size() == count) &&
         page.alias_names_size() == page.alias_tensors_size() &&
         page.flat_dtypes_size() == page.flat_names_size() &&
         page.flat_offsets_size() == page.flat_names_size() &&
         page.flat_elements_size() == page.flat_names_size();
}

bool IsDtype(int value) { return value > 0 && value < kDtypeCount; }

absl::Status AddTensors(const v1::TensorTable& page, RankPlan& plan) {
  int dim = 0;
  for (int i = 0; i < page.names_size(); ++i) {
    PlannedTensor tensor;
    tensor.name = page.names(i);
    const auto dims = static_cast<int>(std::min<uint32_t>(page.ranks_of_shape(i), 1 << 16));
    if (!IsDtype(page.dtypes(i)) || dims > page.dims_size() - dim) {
      return Wrong("the type or the shape of " + tensor.name + " is not there");
    }
    tensor.dtype = static_cast<Dtype>(page.dtypes(i));
    tensor.shape.assign(page.dims().begin() + dim, page.dims().begin() + dim + dims);
    dim += dims;
    tensor.offset = page.offsets(i);
    tensor.bytes = page.bytes(i);
    tensor.padded_bytes = page.padded_bytes(i);
    if (tensor.bytes > tensor.padded_bytes || tensor.padded_bytes > plan.slab_bytes ||
        tensor.offset > plan.slab_bytes - tensor.padded_bytes) {
      return Wrong(fmt::format("{} lies at {} + {} of a slab of {} bytes", tensor.name, tensor.offset,
                               tensor.padded_bytes, plan.slab_bytes));
    }
    plan.tensor_bytes += tensor.bytes;
    plan.tensors.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

absl::Status AddPage(const v1::TensorTable& page, Shard& shard) {
  if (!ColumnsHold(page)) return Wrong("the columns of its tensor table differ in length");
  const size_t first = shard.plan.tensors.size();
  CKPTD_RETURN_IF_ERROR(AddTensors(page, shard.plan));
  for (int i = 0; i < page.alias_names_size(); ++i) {
    const size_t tensor = first + page.alias_tensors(i);
    if (tensor >= shard.plan.tensors.size()) return Wrong("an alias names no tensor");
    shard.plan.tensors[tensor].aliases.push_back(page.alias_names(i));
  }
  for (int i = 0; i < page.flat_names_size(); ++i) {
    if (!IsDtype(page.flat_dtypes(i))) return Wrong("a flat parameter has no type");
    shard.plan.flats.push_back({page.flat_names(i), static_cast<Dtype>(page.flat_dtypes(i)),
                                page.flat_offsets(i), page.flat_elements(i)});
  }
  shard.unexpected.insert(shard.unexpected.end(), page.unexpected_names().begin(),
                          page.unexpected_names().end());
  shard.digests.insert(shard.digests.end(), page.digests().begin(), page.digests().end());
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Shard>> ShardFrom(const v1::KeptCheckpoint& message) {
  auto shard = std::make_shared<Shard>();
  shard->plan.rank = static_cast<uint32_t>(message.rank());
  shard->plan.slab_bytes = message.slab().bytes();
  shard->plan.digest = message.rank_digest();
  for (const v1::TensorTable& page : message.pages()) CKPTD_RETURN_IF_ERROR(AddPage(page, *shard));
  for (const std::string& path : message.paths()) shard->paths.push_back(PathOfText(path));
  shard->file_of.assign(message.file_of().begin(), message.file_of().end());
  if (shard->file_of.size() != shard->plan.tensors.size()) return Wrong("its files are not there");
  if (shard->digests.size() != shard->plan.tensors.size()) return Wrong("its digests are not there");
  return shard;
}

absl::StatusOr<KeptSlab> SlabFrom(const v1::KeptSlab& message) {
  CKPTD_ASSIGN_OR_RETURN(const std::optional<HandleKind> kind, FromProto(message.handle_kind()));
  if (!kind.has_value()) return Wrong("the kind of its memory is not there");
  return KeptSlab{.kind = *kind,
                  .device = message.device_uuid(),
                  .bytes = message.bytes(),
                  .sealed = message.sealed(),
                  .segment_bytes = {message.segment_bytes().begin(), message.segment_bytes().end()}};
}

}  // namespace

v1::KeptCheckpoint ToProto(const KeptCheckpoint& checkpoint, const KeptSlab& slab) {
  const CheckpointInfo& info = checkpoint.info;
  const Shard& shard = *checkpoint.shard;
  v1::KeptCheckpoint out;
  out.set_name(info.name);
  *out.mutable_spec() = ToProto(checkpoint.request);
  if (checkpoint.request.guest.has_value()) {
    *out.mutable_guest() = ToProto(*checkpoint.request.guest);
  }
  out.set_rank(static_cast<int32_t>(info.rank));
  out.set_world_size(static_cast<int32_t>(info.world_size));
  for (const SourceFile& file : checkpoint.files) *out.add_files() = ToProto(file);
  out.mutable_request_digests()->Add(checkpoint.request_digests.begin(),
                                     checkpoint.request_digests.end());
  out.set_plan_digest(info.plan_digest);
  out.set_rank_digest(shard.plan.digest);
  out.set_epoch(info.epoch);
  out.set_pinned(info.pinned);
  *out.mutable_create_time() = ToProto(info.created);
  *out.mutable_active_time() = ToProto(info.activated);
  AddPages(shard, out);
  for (const std::string& path : shard.paths) out.add_paths(TextOfPath(path));
  out.mutable_file_of()->Add(shard.file_of.begin(), shard.file_of.end());
  out.mutable_slab()->set_handle_kind(ToProto(std::optional(slab.kind)));
  out.mutable_slab()->set_device_uuid(slab.device);
  out.mutable_slab()->set_bytes(shard.plan.slab_bytes);
  out.mutable_slab()->mutable_segment_bytes()->Add(slab.segment_bytes.begin(), slab.segment_bytes.end());
  out.mutable_slab()->set_sealed(slab.sealed);
  return out;
}

absl::StatusOr<KeptFromRecord> FromProto(const v1::KeptCheckpoint& message, uint32_t rank,
                                         uint32_t world_size) {
  if (message.rank() != static_cast<int64_t>(rank) ||
      message.world_size() != static_cast<int64_t>(world_size)) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kWrongWorldSize,
                     fmt::format("taking it over: it is the shard of rank {} of {}, this daemon is "
                                 "rank {} of {}; load it again",
                                 message.rank(), message.world_size(), rank, world_size));
  }
  KeptFromRecord kept;
  KeptCheckpoint& out = kept.checkpoint;
  out.info.name = message.name();
  out.info.plan_digest = message.plan_digest();
  out.info.epoch = message.epoch();
  out.info.pinned = message.pinned();
  out.info.created = TimeFrom(message.create_time());
  out.info.activated = TimeFrom(message.active_time());
  CKPTD_ASSIGN_OR_RETURN(out.request, FromProto(message.spec()));
  if (message.has_guest()) out.request.guest = FromProto(message.guest());
  for (const v1::SourceFile& file : message.files()) out.files.push_back(FromProto(file));
  out.request_digests.assign(message.request_digests().begin(), message.request_digests().end());
  CKPTD_ASSIGN_OR_RETURN(out.shard, ShardFrom(message));
  CKPTD_ASSIGN_OR_RETURN(kept.slab, SlabFrom(message.slab()));
  return kept;
}

v1::KeptLease ToProto(const LeaseInfo& lease) {
  v1::KeptLease out;
  out.set_name(lease.name);
  out.set_checkpoint(lease.checkpoint);
  out.set_mode(ToProto(lease.mode));
  *out.mutable_create_time() = ToProto(lease.created);
  return out;
}

absl::StatusOr<LeaseInfo> FromProto(const v1::KeptLease& message) {
  LeaseInfo lease;
  lease.name = message.name();
  lease.checkpoint = message.checkpoint();
  CKPTD_ASSIGN_OR_RETURN(lease.mode, FromProto(message.mode()));
  if (lease.mode == AttachMode::kExclusive) return Wrong("it is EXCLUSIVE");
  lease.created = TimeFrom(message.create_time());
  return lease;
}

}  // namespace ckptd
