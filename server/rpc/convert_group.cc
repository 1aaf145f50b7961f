// Calls between daemons: proto and domain.
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "common/wire/layout.h"
#include "common/wire/sendable_text.h"
#include "common/wire/source_table.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

absl::Status Malformed(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   "reading the leader's plan: " + why + "; run the same ckptd on every rank");
}

absl::StatusOr<CheckpointIndex> IndexFrom(const v1::SourceIndex& in) {
  CheckpointIndex index;
  index.source = PathOfText(in.source());
  for (const v1::SourceFile& file : in.files()) index.files.push_back(FromProto(file));
  const std::string wrong = ReadSourceTable(in.tensors(), index);
  if (!wrong.empty()) return Malformed("the table of the source's tensors does not hold: " + wrong);
  return index;
}

v1::SourceIndex ToProto(const CheckpointIndex& index) {
  v1::SourceIndex out;
  out.set_source(TextOfPath(index.source));
  for (const SourceFile& file : index.files) *out.add_files() = ToProto(file);
  SourceTableWriter tensors(index, *out.mutable_tensors());
  for (const TensorEntry& tensor : index.tensors) tensors.Add(tensor);
  tensors.AddAliases();
  return out;
}

}  // namespace

SourceFile FromProto(const v1::SourceFile& file) {
  return {PathOfText(file.path()), file.bytes(),    file.object(),     file.version(),
          file.host(),             file.mtime_ns(), file.header_hash()};
}

v1::SourceFile ToProto(const SourceFile& file) {
  v1::SourceFile out;
  out.set_path(TextOfPath(file.path));
  out.set_bytes(file.bytes);
  out.set_object(file.object);
  out.set_version(file.version);
  out.set_host(file.host);
  out.set_mtime_ns(file.mtime_ns);
  out.set_header_hash(file.header_hash);
  return out;
}

v1::PrepareRequest ToProto(const PrepareCall& call) {
  v1::PrepareRequest out;
  out.set_epoch(call.epoch);
  out.set_name(call.name);
  *out.mutable_spec() = ToProto(call.request);
  if (call.request.guest.has_value()) *out.mutable_guest() = ToProto(*call.request.guest);
  out.set_load_key(LoadKey(call.request));
  *out.mutable_index() = ToProto(*call.index);
  out.set_rank_digest(call.rank_digest);
  out.set_plan_digest(call.plan_digest);
  out.set_members_read(call.members_read);
  out.set_unmapped(call.unmapped);
  out.set_order(call.order);
  out.mutable_request_digests()->Add(call.request_digests.begin(), call.request_digests.end());
  return out;
}

absl::StatusOr<PrepareCall> FromProto(const v1::PrepareRequest& in) {
  PrepareCall call;
  call.epoch = in.epoch();
  call.name = in.name();
  CKPTD_ASSIGN_OR_RETURN(call.request, FromProto(in.spec()));
  if (in.has_guest()) call.request.guest = FromProto(in.guest());
  if (LoadKey(call.request) != in.load_key()) return Malformed("its load key differs");
  CKPTD_ASSIGN_OR_RETURN(CheckpointIndex index, IndexFrom(in.index()));
  call.index = std::make_shared<const CheckpointIndex>(std::move(index));
  call.rank_digest = in.rank_digest();
  call.plan_digest = in.plan_digest();
  call.members_read = in.members_read();
  call.unmapped = in.unmapped();
  call.order = in.order();
  call.request_digests = {in.request_digests().begin(), in.request_digests().end()};
  return call;
}

v1::PrepareResponse ToProto(const PrepareReply& reply) {
  v1::PrepareResponse out;
  out.set_resident(reply.resident);
  out.set_rank_digest(reply.rank_digest);
  for (const PeerSlab::PeerSegment& segment : reply.segments) {
    auto* one = out.add_segments();
    one->set_id(segment.id);
    one->set_bytes(segment.bytes);
  }
  out.set_memory_endpoint(reply.memory_endpoint);
  out.mutable_owned_segments()->Add(reply.owned_segments.begin(), reply.owned_segments.end());
  out.set_device_uuid(reply.device);
  out.set_communicator(reply.communicator);
  out.set_no_communicator(SendableText(reply.no_communicator));
  out.set_communicator_id(reply.communicator_id);
  out.set_has_leases(reply.has_leases);
  return out;
}

PrepareReply FromProto(const v1::PrepareResponse& response) {
  PrepareReply reply;
  reply.resident = response.resident();
  reply.rank_digest = response.rank_digest();
  for (const v1::SlabSegment& segment : response.segments()) {
    reply.segments.push_back({segment.id(), segment.bytes()});
  }
  reply.memory_endpoint = response.memory_endpoint();
  reply.owned_segments = {response.owned_segments().begin(), response.owned_segments().end()};
  reply.device = response.device_uuid();
  reply.communicator = response.communicator();
  reply.no_communicator = response.no_communicator();
  reply.communicator_id = response.communicator_id();
  reply.has_leases = response.has_leases();
  return reply;
}

v1::CommitRequest ToProto(const CommitCall& call) {
  v1::CommitRequest out;
  out.set_epoch(call.epoch);
  out.set_name(call.name);
  out.set_tensor_bytes(call.tensor_bytes);
  out.set_streamed_bytes(call.streamed_bytes);
  out.mutable_digests()->Add(call.digests.begin(), call.digests.end());
  *out.mutable_progress() = ToProto(call.progress);
  return out;
}

CommitCall FromProto(const v1::CommitRequest& request) {
  CommitCall call;
  call.epoch = request.epoch();
  call.name = request.name();
  call.tensor_bytes = request.tensor_bytes();
  call.streamed_bytes = request.streamed_bytes();
  call.digests = {request.digests().begin(), request.digests().end()};
  call.progress = FromProto(request.progress());
  return call;
}

v1::JoinRequest ToProto(const MemberIdentity& identity,
                        const std::vector<ResidentCheckpoint>& residents) {
  v1::JoinRequest out;
  out.set_job(identity.job);
  out.set_version(identity.version);
  out.set_rank(static_cast<int32_t>(identity.rank));
  out.set_world_size(static_cast<int32_t>(identity.world_size));
  out.set_incarnation(identity.incarnation);
  out.set_address(identity.address);
  out.set_host(identity.host);
  out.set_pid(identity.pid);
  for (const ResidentCheckpoint& resident : residents) {
    auto* one = out.add_residents();
    one->set_name(resident.name);
    one->set_load_key(resident.load_key);
    for (const SourceFile& file : resident.files) *one->add_files() = ToProto(file);
    one->mutable_request_digests()->Add(resident.request_digests.begin(),
                                        resident.request_digests.end());
  }
  return out;
}

MemberIdentity IdentityFrom(const v1::JoinRequest& request) {
  return {request.job(),
          request.version(),
          static_cast<uint32_t>(request.rank()),
          static_cast<uint32_t>(request.world_size()),
          request.incarnation(),
          request.address(),
          request.host(),
          request.pid()};
}

std::vector<ResidentCheckpoint> ResidentsFrom(const v1::JoinRequest& request) {
  std::vector<ResidentCheckpoint> residents;
  for (const v1::ResidentCheckpoint& resident : request.residents()) {
    ResidentCheckpoint one;
    one.name = resident.name();
    one.load_key = resident.load_key();
    for (const v1::SourceFile& file : resident.files()) one.files.push_back(FromProto(file));
    one.request_digests = {resident.request_digests().begin(), resident.request_digests().end()};
    residents.push_back(std::move(one));
  }
  return residents;
}

}  // namespace ckptd
