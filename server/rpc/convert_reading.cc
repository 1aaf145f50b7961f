// Reading by members: proto and domain.
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/wire/layout.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

// More readers than any group has ranks.
constexpr uint32_t kMaxParts = 1 << 20;

}  // namespace

v1::ReadOrder ToProto(const ReadOrder& order) {
  v1::ReadOrder out;
  out.set_part(order.part);
  out.set_parts(order.parts);
  for (const ReadOrder::Target& target : order.targets) {
    v1::ReadTarget& one = *out.add_targets();
    one.set_rank(static_cast<int32_t>(target.who.rank));
    one.set_incarnation(target.who.incarnation);
    one.set_address(target.who.address);
    one.set_host(target.who.host);
    one.set_rank_digest(target.rank_digest);
    *one.mutable_prepared() = ToProto(target.prepared);
  }
  for (const Cohort& cohort : order.cohorts) {
    v1::Cohort& one = *out.add_cohorts();
    *one.mutable_layout() = ToProto(*cohort.layout);
    one.mutable_ranks()->Add(cohort.ranks.begin(), cohort.ranks.end());
  }
  return out;
}

absl::StatusOr<ReadOrder> FromProto(const v1::ReadOrder& order) {
  ReadOrder out;
  out.part = order.part();
  out.parts = order.parts();
  if (out.part >= out.parts || out.parts > kMaxParts) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("reading the leader's order: it asks for part {} of {}; run the "
                                 "same ckptd on every rank",
                                 out.part, out.parts));
  }
  for (const v1::ReadTarget& target : order.targets()) {
    ReadOrder::Target one;
    one.who.rank = static_cast<uint32_t>(target.rank());
    one.who.incarnation = target.incarnation();
    one.who.address = target.address();
    one.who.host = target.host();
    one.rank_digest = target.rank_digest();
    one.prepared = FromProto(target.prepared());
    out.targets.push_back(std::move(one));
  }
  for (const v1::Cohort& cohort : order.cohorts()) {
    CKPTD_ASSIGN_OR_RETURN(RankLayout layout, FromProto(cohort.layout()));
    for (const int32_t rank : cohort.ranks()) {
      if (rank >= 0 && static_cast<uint32_t>(rank) < layout.world_size) continue;
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                       fmt::format("reading the leader's order: it has a request of rank {} of {}; "
                                   "run the same ckptd on every rank",
                                   rank, layout.world_size));
    }
    out.cohorts.push_back({std::make_shared<const RankLayout>(std::move(layout)),
                           {cohort.ranks().begin(), cohort.ranks().end()}});
  }
  return out;
}

v1::Scatter ToProto(const ScatterCall& call) {
  v1::Scatter out;
  out.set_communicator_id(call.comm_id);
  out.set_rank(call.rank);
  out.mutable_group_ranks()->Add(call.ranks.begin(), call.ranks.end());
  out.mutable_readers()->Add(call.readers.begin(), call.readers.end());
  out.mutable_replicas()->Add(call.replicas.begin(), call.replicas.end());
  out.set_fanout(call.fanout);
  out.set_step_bytes(call.size.step_bytes);
  out.set_step_tensors(call.size.step_tensors);
  out.set_digest(call.digest);
  out.mutable_whole_tensors()->Add(call.whole.begin(), call.whole.end());
  return out;
}

absl::StatusOr<ScatterCall> FromProto(const v1::Scatter& scatter) {
  ScatterCall out;
  out.comm_id = scatter.communicator_id();
  out.rank = scatter.rank();
  out.ranks = {scatter.group_ranks().begin(), scatter.group_ranks().end()};
  out.readers = {scatter.readers().begin(), scatter.readers().end()};
  out.replicas = {scatter.replicas().begin(), scatter.replicas().end()};
  out.fanout = scatter.fanout();
  out.size = {scatter.step_bytes(), scatter.step_tensors()};
  out.digest = scatter.digest();
  out.whole = {scatter.whole_tensors().begin(), scatter.whole_tensors().end()};
  CKPTD_RETURN_IF_ERROR(CheckScatterCall(out));
  return out;
}

v1::ExecuteResponse ToProto(const ReadReport& report) {
  v1::ExecuteResponse out;
  *out.mutable_read() = ToProto(report.read);
  out.set_exchanges(report.exchanges);
  out.set_busy(report.busy);
  if (!report.slowest_file.path.empty()) *out.mutable_slowest_file() = ToProto(report.slowest_file);
  for (const ReadReport::Filled& filled : report.filled) {
    v1::FilledRank& one = *out.add_filled();
    one.set_rank(static_cast<int32_t>(filled.rank));
    one.set_bytes(filled.bytes);
    one.set_streamed(filled.streamed);
    one.mutable_digests()->Add(filled.digests.begin(), filled.digests.end());
  }
  return out;
}

ReadReport FromProto(const v1::ExecuteResponse& response) {
  ReadReport out;
  out.read = FromProto(response.read());
  out.exchanges = response.exchanges();
  out.busy = response.busy();
  out.slowest_file = FromProto(response.slowest_file());
  for (const v1::FilledRank& filled : response.filled()) {
    ReadReport::Filled one;
    one.rank = static_cast<uint32_t>(filled.rank());
    one.bytes = filled.bytes();
    one.streamed = filled.streamed();
    one.digests = {filled.digests().begin(), filled.digests().end()};
    out.filled.push_back(std::move(one));
  }
  return out;
}

}  // namespace ckptd
