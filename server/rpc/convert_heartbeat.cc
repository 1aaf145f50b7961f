// Joining and heartbeats: proto and domain.
#include <algorithm>
#include <chrono>
#include <utility>

#include "server/rpc/convert.h"

namespace ckptd {

v1::JoinResponse ToProto(const JoinReply& reply) {
  v1::JoinResponse out;
  out.set_epoch(reply.epoch);
  out.set_incarnation(reply.incarnation);
  out.set_secret(reply.secret);
  out.set_version(reply.version);
  *out.mutable_heartbeat_interval() = ToProto(reply.heartbeat_interval);
  *out.mutable_heartbeat_timeout() = ToProto(reply.heartbeat_timeout);
  return out;
}

JoinReply FromProto(const v1::JoinResponse& response) {
  // The limits of --heartbeat-interval and --heartbeat-timeout. With other values a member would
  // never pause, or never notice that its leader is gone.
  using Nanoseconds = std::chrono::nanoseconds;
  const auto interval =
      std::clamp<Nanoseconds>(FromProto(response.heartbeat_interval()),
                              std::chrono::milliseconds(10), std::chrono::minutes(30));
  const auto timeout = std::clamp<Nanoseconds>(FromProto(response.heartbeat_timeout()),
                                               2 * interval, std::chrono::hours(1));
  return {response.epoch(), response.incarnation(), response.secret(), response.version(),
          interval, timeout};
}

v1::HeartbeatRequest ToProto(const HeartbeatCall& call) {
  v1::HeartbeatRequest out;
  out.set_rank(static_cast<int32_t>(call.rank));
  out.set_incarnation(call.incarnation);
  out.set_members_epoch(call.members_epoch);
  if (call.reading.has_value()) {
    out.mutable_reading()->set_name(call.reading->name);
    *out.mutable_reading()->mutable_done() = ToProto(call.reading->done);
    out.mutable_reading()->set_ended(call.reading->ended);
  }
  for (const std::string& proposal : call.abandoned) out.add_abandoned(proposal);
  for (const Participant& one : call.participants) *out.add_participants() = ToProto(one);
  for (const std::string& name : call.held) out.add_held(name);
  for (const std::string& name : call.has_room) out.add_has_room(name);
  return out;
}

HeartbeatCall FromProto(const v1::HeartbeatRequest& request) {
  HeartbeatCall call;
  call.rank = static_cast<uint32_t>(request.rank());
  call.incarnation = request.incarnation();
  call.members_epoch = request.members_epoch();
  if (!request.reading().name().empty()) {
    call.reading = {request.reading().name(), FromProto(request.reading().done()),
                    request.reading().ended()};
  }
  call.abandoned.assign(request.abandoned().begin(), request.abandoned().end());
  for (const v1::LoadParticipant& one : request.participants()) {
    if (call.participants.size() < kMostParticipants) call.participants.push_back(FromProto(one));
  }
  call.held = {request.held().begin(), request.held().end()};
  call.has_room.assign(request.has_room().begin(), request.has_room().end());
  return call;
}

v1::HeartbeatResponse ToProto(const HeartbeatReply& reply) {
  v1::HeartbeatResponse out;
  out.set_epoch(reply.epoch);
  out.set_incarnation(reply.incarnation);
  for (const uint32_t rank : reply.missing_ranks) {
    out.add_missing_ranks(static_cast<int32_t>(rank));
  }
  for (const auto& [name, progress] : reply.loads) {
    v1::LoadProgress& load = *out.add_loads();
    load.set_name(name);
    *load.mutable_progress() = ToProto(progress);
  }
  for (const auto& [rank, incarnation] : reply.members) {
    v1::MemberName& member = *out.add_members();
    member.set_rank(static_cast<int32_t>(rank));
    member.set_incarnation(incarnation);
  }
  for (const Verdict& verdict : reply.verdicts) *out.add_verdicts() = ToProto(verdict);
  for (const auto& [name, ranks] : reply.residences) {
    v1::Residence& residence = *out.add_residences();
    residence.set_name(name);
    residence.set_ranks(ranks);
  }
  return out;
}

HeartbeatReply FromProto(const v1::HeartbeatResponse& response) {
  HeartbeatReply reply;
  reply.epoch = response.epoch();
  reply.incarnation = response.incarnation();
  for (const int32_t missing : response.missing_ranks()) {
    reply.missing_ranks.push_back(static_cast<uint32_t>(missing));
  }
  for (const v1::LoadProgress& load : response.loads()) {
    reply.loads.emplace_back(load.name(), FromProto(load.progress()));
  }
  for (const v1::MemberName& member : response.members()) {
    reply.members[static_cast<uint32_t>(member.rank())] = member.incarnation();
  }
  for (const v1::ParticipantVerdict& verdict : response.verdicts()) {
    reply.verdicts.push_back(FromProto(verdict));
  }
  for (const v1::Residence& residence : response.residences()) {
    reply.residences[residence.name()] = residence.ranks();
  }
  return reply;
}

}  // namespace ckptd
