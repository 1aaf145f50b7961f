// Clients that take part in loads: proto and domain.
#include <algorithm>
#include <climits>
#include <utility>

#include "common/source/path_text.h"
#include "common/wire/sendable_text.h"
#include "server/protocol/timing.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

// Limits of what a client sends, because each heartbeat carries it to every rank.
constexpr size_t kMostText = 2048;
constexpr size_t kMostFacts = 16;
constexpr size_t kMostName = 64;
// Bytes that are not UTF-8 take three characters each. The scheme comes in front.
constexpr size_t kMostPathText = 3 * PATH_MAX + 16;
constexpr std::chrono::hours kOldest{24 * 365 * 10};

std::string Bounded(const std::string& text, size_t most = kMostText) {
  // This character separates the facts of a status.
  std::string out = SendableText(text, most);
  std::replace(out.begin(), out.end(), '\0', '?');
  return out;
}

// The path that a client names. Empty if it is longer than any path; a cut path would be another
// one.
std::string PathFrom(const std::string& text) {
  std::string path = SourceOfText(text.size() > kMostPathText ? std::string() : text);
  const bool possible = path.size() <= PATH_MAX && path.find('\0') == std::string::npos;
  return possible ? path : std::string();
}

void SetFacts(const absl::Status& status, google::protobuf::Map<std::string, std::string>& facts) {
  for (const auto& [key, value] : FactsOf(status)) facts[key] = SendableFact(key, value, kMostText);
}

std::chrono::nanoseconds AgeFrom(const google::protobuf::Duration& age) {
  return std::clamp<std::chrono::nanoseconds>(FromProto(age), std::chrono::nanoseconds(0), kOldest);
}

}  // namespace

absl::Status FailureFrom(const v1::Failure& failure,
                         const google::protobuf::Map<std::string, std::string>& facts) {
  v1::Failure bounded = failure;
  bounded.set_message(Bounded(failure.message()));
  bounded.set_reason(Bounded(failure.reason(), kMostName));
  Facts some;
  for (const auto& [key, value] : facts) {
    if (some.size() < kMostFacts) some[Bounded(key, kMostName)] = Bounded(value);
  }
  return FromFailure(bounded, some);
}

Participant FromProto(const v1::JoinLoadRequest& request) {
  Participant participant;
  participant.id = request.participant();
  participant.source = PathFrom(request.source());
  participant.real_source = PathFrom(request.real_source());
  participant.job = Bounded(request.job_key(), kMostName);
  participant.pid = static_cast<uint32_t>(request.pid());
  participant.barrier = request.barrier();
  participant.process_age = AgeFrom(request.process_age());
  using Nanoseconds = std::chrono::nanoseconds;
  if (request.has_timeout()) {
    participant.time_left =
        std::clamp<Nanoseconds>(FromProto(request.timeout()), Nanoseconds(0), timing::kLongestBarrier);
  }
  return participant;
}

v1::LoadParticipant ToProto(const Participant& participant) {
  v1::LoadParticipant out;
  v1::JoinLoadRequest& joined = *out.mutable_joined();
  joined.set_participant(participant.id);
  joined.set_source(TextOfPath(participant.source));
  joined.set_real_source(TextOfPath(participant.real_source));
  joined.set_job_key(participant.job);
  joined.set_pid(static_cast<int32_t>(participant.pid));
  joined.set_barrier(participant.barrier);
  *joined.mutable_process_age() = ToProto(participant.process_age);
  *joined.mutable_timeout() =
      ToProto(std::max(participant.time_left, std::chrono::nanoseconds(0)));
  if (participant.guest.has_value()) out.set_guest_uid(*participant.guest);
  *out.mutable_age() = ToProto(participant.age);
  *out.mutable_ended_age() = ToProto(participant.ended_age);
  out.set_placed(participant.state == Participant::State::kPlaced);
  if (participant.state == Participant::State::kFailed) {
    *out.mutable_failure() = ToFailure(participant.failure);
    SetFacts(participant.failure, *out.mutable_facts());
  }
  return out;
}

Participant FromProto(const v1::LoadParticipant& in) {
  Participant participant = FromProto(in.joined());
  if (in.has_guest_uid()) participant.guest = in.guest_uid();
  participant.age = AgeFrom(in.age());
  participant.ended_age = AgeFrom(in.ended_age());
  if (in.has_failure()) {
    participant.state = Participant::State::kFailed;
    participant.failure = FailureFrom(in.failure(), in.facts());
  } else if (in.placed()) {
    participant.state = Participant::State::kPlaced;
  }
  return participant;
}

v1::JoinLoadResponse AnswerOf(const absl::Status& outcome) {
  v1::JoinLoadResponse out;
  if (outcome.ok()) return out;
  *out.mutable_failure() = ToFailure(outcome);
  SetFacts(outcome, *out.mutable_facts());
  return out;
}

v1::ParticipantVerdict ToProto(const Verdict& verdict) {
  v1::ParticipantVerdict out;
  out.set_participant(verdict.id);
  *out.mutable_answer() = AnswerOf(verdict.status);
  return out;
}

Verdict FromProto(const v1::ParticipantVerdict& in) {
  const v1::JoinLoadResponse& answer = in.answer();
  return {in.participant(), answer.has_failure() ? FailureFrom(answer.failure(), answer.facts())
                                                 : absl::OkStatus()};
}

}  // namespace ckptd
