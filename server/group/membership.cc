#include "server/group/membership.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {


absl::Status Refused(const MemberIdentity& who, const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kJoinRefused,
                   fmt::format("joining the group as rank {} from {}: {}", who.rank, who.address,
                               why),
                   {{"rank", std::to_string(who.rank)}});
}

}  // namespace

absl::Status RankLost(uint32_t rank, const std::string& why) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kRankLost,
                   fmt::format("rank {}: its daemon was lost ({}); once it is back, load again",
                               rank, why),
                   {{"rank", std::to_string(rank)}});
}

Membership::Membership(Options options)
    : options_(std::move(options)), secret_(RandomHex(16)), members_(options_.self.world_size) {
  members_[0].state = {options_.self, true, Clock::now()};
  members_[0].link = options_.self_link;
}

absl::Status Membership::CheckIdentity(const MemberIdentity& who) const {
  const MemberIdentity& self = options_.self;
  if (who.job != self.job) {
    return Refused(who, fmt::format("its job is \"{}\", this group's is \"{}\"; check --job and "
                                    "--rendezvous",
                                    who.job, self.job));
  }
  if (who.version != self.version) {
    return Refused(who, fmt::format("it runs ckptd {}, the leader {}; install the same version "
                                    "everywhere",
                                    who.version, self.version));
  }
  if (who.world_size != self.world_size) {
    return Refused(who, fmt::format("it was started for a world size of {}, the leader for {}",
                                    who.world_size, self.world_size));
  }
  if (who.rank == 0 || who.rank >= self.world_size) {
    return Refused(who, fmt::format("members have ranks 1 to {}", self.world_size - 1));
  }
  return absl::OkStatus();
}

absl::Status Membership::FreeRankFor(const MemberIdentity& who) {
  std::shared_ptr<MemberLink> holder;
  MemberIdentity held;
  uint64_t epoch = 0;
  {
    MutexLock lock(mutex_);
    epoch = epoch_;
    const Member& member = members_[who.rank];
    if (member.state.joined && member.state.identity.incarnation != who.incarnation) {
      holder = member.link;
      held = member.state.identity;
    }
  }
  if (holder == nullptr) return absl::OkStatus();
  // A restarted daemon may join before its predecessor's silence is noticed.
  if (holder->Probe(Clock::now() + timing::kProbe).ok()) {
    return Refused(who, fmt::format("process {} on {} holds that rank and is alive; give each "
                                    "daemon its own rank",
                                    held.pid, held.address));
  }
  Drop(who.rank, epoch, "it was restarted");
  return absl::OkStatus();
}

absl::StatusOr<JoinReply> Membership::Join(const MemberIdentity& who) {
  CKPTD_RETURN_IF_ERROR(CheckIdentity(who));
  CKPTD_RETURN_IF_ERROR(FreeRankFor(who));
  MutexLock lock(mutex_);
  Member& member = members_[who.rank];
  const bool known = member.state.joined && member.state.identity.incarnation == who.incarnation;
  member.state.last_heartbeat = Clock::now();
  if (!known) {
    member.state.identity = who;
    member.state.joined = true;
    member.link = options_.connect(who);
    StartEpoch(MakeError(absl::StatusCode::kAborted, reason::kEpochChanged,
                         fmt::format("rank {} joined the group meanwhile; load again", who.rank),
                         {{"rank", std::to_string(who.rank)}}));
    member.since = epoch_;
    Log(LogLevel::kInfo, "rank {} joined from {} (process {}), epoch {}", who.rank, who.address,
        who.pid, epoch_);
  }
  return JoinReply{epoch_,
                   options_.self.incarnation,
                   secret_,
                   options_.self.version,
                   options_.heartbeat_interval,
                   options_.heartbeat_timeout};
}

absl::StatusOr<HeartbeatReply> Membership::Heartbeat(uint32_t rank,
                                                     const std::string& incarnation) {
  HeartbeatReply reply;
  {
    MutexLock lock(mutex_);
    if (rank >= members_.size() || !members_[rank].state.joined ||
        members_[rank].state.identity.incarnation != incarnation) {
      return MakeError(absl::StatusCode::kNotFound, reason::kRankMissing,
                       fmt::format("heartbeat of rank {}: it is not a member; join again", rank));
    }
    members_[rank].state.last_heartbeat = Clock::now();
    reply.epoch = epoch_;
    reply.incarnation = options_.self.incarnation;
  }
  reply.missing_ranks = MissingRanks();
  return reply;
}

std::vector<uint32_t> Membership::DropSilent() {
  const std::string why =
      fmt::format("no heartbeat for {} s",
                  std::chrono::duration<double>(options_.heartbeat_timeout).count());
  std::vector<uint32_t> ranks;
  std::vector<std::shared_ptr<MemberLink>> dropped;
  {
    MutexLock lock(mutex_);
    const auto limit = Clock::now() - options_.heartbeat_timeout;
    for (uint32_t rank = 1; rank < members_.size(); ++rank) {
      const MemberState& state = members_[rank].state;
      if (!state.joined || state.last_heartbeat >= limit) continue;
      ranks.push_back(rank);
      dropped.push_back(TakeLink(rank, why));
    }
  }
  for (const auto& link : dropped) link->Close(why);
  return ranks;
}

void Membership::Drop(uint32_t rank, uint64_t epoch, const std::string& why) {
  std::shared_ptr<MemberLink> dropped;
  {
    MutexLock lock(mutex_);
    const Member& member = members_[rank];
    if (rank == 0 || !member.state.joined || member.since > epoch) return;
    dropped = TakeLink(rank, why);
  }
  dropped->Close(why);
}

std::shared_ptr<MemberLink> Membership::TakeLink(uint32_t rank, const std::string& why) {
  Member& member = members_[rank];
  member.state.joined = false;
  StartEpoch(RankLost(rank, why));
  member.since = epoch_;
  Log(LogLevel::kWarn, "rank {} lost: {}, epoch {}", rank, why, epoch_);
  return std::move(member.link);
}

void Membership::StartEpoch(absl::Status why) {
  ++epoch_;
  last_change_ = std::move(why);
  changed_.NotifyAll();
}

uint64_t Membership::epoch() const {
  MutexLock lock(mutex_);
  return epoch_;
}

bool Membership::WaitComplete(Deadline deadline) const {
  MutexLock lock(mutex_);
  return changed_.WaitUntil(mutex_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Member& member : members_) {
      if (!member.state.joined) return false;
    }
    return true;
  });
}

std::vector<uint32_t> Membership::MissingRanks() const {
  MutexLock lock(mutex_);
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (!members_[rank].state.joined) missing.push_back(rank);
  }
  return missing;
}

std::vector<MemberState> Membership::Members() const {
  MutexLock lock(mutex_);
  std::vector<MemberState> states;
  for (const Member& member : members_) states.push_back(member.state);
  states[0].last_heartbeat = Clock::now();
  for (uint32_t rank = 0; rank < states.size(); ++rank) states[rank].identity.rank = rank;
  return states;
}

std::map<uint32_t, std::string> Membership::Incarnations() const {
  MutexLock lock(mutex_);
  std::map<uint32_t, std::string> there;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const MemberState& state = members_[rank].state;
    if (state.joined) there.emplace_hint(there.end(), rank, state.identity.incarnation);
  }
  return there;
}

std::map<uint32_t, std::string> Membership::ChangedSince(uint64_t epoch) const {
  if (epoch == 0) return MissingRanks().empty() ? Incarnations() : std::map<uint32_t, std::string>();
  MutexLock lock(mutex_);
  std::map<uint32_t, std::string> changed;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const Member& member = members_[rank];
    if (member.since > epoch) {
      changed[rank] = member.state.joined ? member.state.identity.incarnation : "";
    }
  }
  return changed;
}

std::vector<std::shared_ptr<MemberLink>> Membership::Links() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<MemberLink>> links;
  for (const Member& member : members_) {
    if (member.state.joined) links.push_back(member.link);
  }
  return links;
}

std::optional<Membership::Session> Membership::CurrentSession() const {
  MutexLock lock(mutex_);
  Session session;
  session.epoch = epoch_;
  for (const Member& member : members_) {
    if (!member.state.joined) return std::nullopt;
    session.links.push_back(member.link);
    session.identities.push_back(member.state.identity);
  }
  return session;
}

absl::Status Membership::CheckEpoch(uint64_t epoch) const {
  MutexLock lock(mutex_);
  if (epoch == epoch_) return absl::OkStatus();
  return last_change_;
}

}  // namespace ckptd
