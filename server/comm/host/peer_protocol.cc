#include "server/comm/host/peer_protocol.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "common/base/reasons.h"
#include "common/base/secret.h"
#include "common/base/status.h"
#include "fmt/format.h"

namespace ckptd {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire form is little-endian");

constexpr std::array<char, 4> kMagic = {'C', 'K', 'P', 'M'};
constexpr uint32_t kMaxSentenceBytes = 4096;

struct Request {
  std::array<char, 4> magic = kMagic;
  uint32_t count = 0;
  std::array<char, kPeerSecretBytes> secret = {};
};
struct Answer {
  std::array<char, 4> magic = kMagic;
  uint32_t status = 0;
  uint32_t fds = 0;
  uint32_t remaining = 0;
};
static_assert(sizeof(Request) == 40 && sizeof(Answer) == 16);

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

// Receives one T and up to `max_fds` descriptors.
template <typename T>
absl::StatusOr<T> Receive(int socket, size_t max_fds, std::vector<UniqueFd>& fds,
                          Deadline deadline) {
  CKPTD_ASSIGN_OR_RETURN(Received raw, RecvExactly(socket, sizeof(T), max_fds, deadline));
  T value;
  std::memcpy(&value, raw.bytes.data(), sizeof(T));
  for (UniqueFd& fd : raw.fds) fds.push_back(std::move(fd));
  return value;
}

absl::Status Garbled(const std::string& what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   "exchanging memory with a daemon of this host: " + what +
                       "; run the same ckptd for all daemons");
}

absl::Status CheckQuestion(const std::string& secret, std::span<const uint64_t> ids) {
  if (secret.size() == kPeerSecretBytes && ids.size() <= kMaxPeerSegments) return absl::OkStatus();
  return Garbled("no secret of the group yet, or too many segments");
}

absl::Status CheckCaller(int socket) {
  CKPTD_ASSIGN_OR_RETURN(const PeerCredentials caller, CredentialsOf(socket));
  if (caller.uid == ::geteuid() || caller.uid == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kJoinRefused,
                   fmt::format("asking a daemon for its memory as user {}: it runs as user {}; "
                               "run all daemons of a job as one user",
                               caller.uid, ::geteuid()));
}

absl::StatusOr<std::vector<uint64_t>> ReceiveRequest(int socket, const std::string& secret,
                                                     Deadline deadline) {
  std::vector<UniqueFd> none;
  CKPTD_ASSIGN_OR_RETURN(const Request request, Receive<Request>(socket, 0, none, deadline));
  if (request.magic != kMagic) return Garbled("the request is malformed");
  if (!SameSecret(secret, {request.secret.data(), request.secret.size()})) {
    return MakeError(absl::StatusCode::kUnauthenticated, reason::kTokenInvalid,
                     "asking a daemon for its memory: the group's secret differs; one of the two "
                     "daemons left the group, it joins again by itself");
  }
  if (request.count > kMaxPeerSegments) return Garbled("too many segments requested");
  std::vector<uint64_t> ids(request.count);
  CKPTD_ASSIGN_OR_RETURN(const Received raw,
                         RecvExactly(socket, ids.size() * sizeof(uint64_t), 0, deadline));
  if (!ids.empty()) std::memcpy(ids.data(), raw.bytes.data(), raw.bytes.size());
  return ids;
}

absl::Status SendError(int socket, const absl::Status& error, Deadline deadline) {
  const std::string sentence = MessageOf(error).substr(0, kMaxSentenceBytes);
  Answer answer;
  answer.status = static_cast<uint32_t>(error.code());
  const auto length = static_cast<uint32_t>(sentence.size());
  std::vector<std::byte> all;
  for (const auto part :
       {BytesOf(answer), BytesOf(length), std::as_bytes(std::span(sentence))}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return SendWithFds(socket, all, {}, deadline);
}

absl::Status SendSegments(int socket, const std::vector<uint64_t>& ids,
                          const SegmentLookup& lookup, Deadline deadline) {
  size_t done = 0;
  do {
    const size_t count = std::min(kMaxFdsPerMessage, ids.size() - done);
    std::vector<UniqueFd> owned;
    std::vector<int> fds;
    for (size_t i = 0; i < count; ++i) {
      absl::StatusOr<UniqueFd> fd = lookup(ids[done + i]);
      if (!fd.ok()) {
        CKPTD_RETURN_IF_ERROR(SendError(socket, fd.status(), deadline));
        return fd.status();
      }
      fds.push_back(fd->get());
      owned.push_back(std::move(*fd));
    }
    done += count;
    Answer answer;
    answer.fds = static_cast<uint32_t>(count);
    answer.remaining = static_cast<uint32_t>(ids.size() - done);
    CKPTD_RETURN_IF_ERROR(SendWithFds(socket, BytesOf(answer), fds, deadline));
  } while (done < ids.size());
  return absl::OkStatus();
}

absl::Status SendRequest(int socket, const std::string& secret, std::span<const uint64_t> ids,
                         Deadline deadline) {
  Request request;
  request.count = static_cast<uint32_t>(ids.size());
  std::memcpy(request.secret.data(), secret.data(), kPeerSecretBytes);
  CKPTD_RETURN_IF_ERROR(SendWithFds(socket, BytesOf(request), {}, deadline));
  return SendWithFds(socket, std::as_bytes(ids), {}, deadline);
}

// Receives the rest of an error answer, and returns it as a status.
absl::Status ReceiveError(int socket, uint32_t status, Deadline deadline) {
  std::vector<UniqueFd> none;
  CKPTD_ASSIGN_OR_RETURN(const auto length, Receive<uint32_t>(socket, 0, none, deadline));
  const auto code = static_cast<absl::StatusCode>(status);
  if (status == 0 || status > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated) ||
      length == 0 || length > kMaxSentenceBytes) {
    return Garbled("the answer has an unknown error code");
  }
  CKPTD_ASSIGN_OR_RETURN(const Received text, RecvExactly(socket, length, 0, deadline));
  const std::string sentence(reinterpret_cast<const char*>(text.bytes.data()), text.bytes.size());
  // The peer has described this segment before. If it does not own it any more, it has ended the
  // load, as members do that have given up a leader.
  if (code == absl::StatusCode::kNotFound) {
    return MakeError(absl::StatusCode::kAborted, reason::kEpochChanged,
                     sentence + ": its daemon has ended this load; load again");
  }
  return MakeError(code,
                   code == absl::StatusCode::kUnauthenticated ? reason::kTokenInvalid
                                                              : reason::kRankFailed,
                   sentence);
}

}  // namespace

absl::StatusOr<std::vector<UniqueFd>> FetchPeerSegments(const std::string& path,
                                                        const std::string& secret,
                                                        std::span<const uint64_t> ids,
                                                        Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(CheckQuestion(secret, ids));
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd socket, ConnectUnix(path, deadline));
  return AskPeer(socket.get(), secret, ids, deadline);
}

absl::StatusOr<std::vector<UniqueFd>> AskPeer(int socket, const std::string& secret,
                                              std::span<const uint64_t> ids, Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(CheckQuestion(secret, ids));
  // The peer may refuse before all ids are sent. Its answer then says more than the broken pipe.
  const absl::Status sent = SendRequest(socket, secret, ids, deadline);
  std::vector<UniqueFd> fds;
  do {
    const size_t before = fds.size();
    const size_t room = std::min(kMaxFdsPerMessage, ids.size() - before);
    const absl::StatusOr<Answer> answer = Receive<Answer>(socket, room, fds, deadline);
    if (!answer.ok()) return sent.ok() ? answer.status() : sent;
    if (answer->magic != kMagic) return Garbled("the answer is malformed");
    if (answer->status != 0) return ReceiveError(socket, answer->status, deadline);
    const size_t got = fds.size() - before;
    if (got != answer->fds || fds.size() + answer->remaining != ids.size() ||
        (got == 0 && !ids.empty())) {
      return Garbled("the answer has other descriptors than were requested");
    }
  } while (fds.size() < ids.size());
  return fds;
}

absl::Status AnswerPeer(int socket, const std::string& secret, const SegmentLookup& lookup,
                        Deadline deadline) {
  absl::Status caller = CheckCaller(socket);
  if (!caller.ok()) {
    CKPTD_RETURN_IF_ERROR(SendError(socket, caller, deadline));
    return caller;
  }
  const absl::StatusOr<std::vector<uint64_t>> ids = ReceiveRequest(socket, secret, deadline);
  if (!ids.ok()) {
    // Only a caller that speaks the protocol gets a sentence.
    if (ids.status().code() == absl::StatusCode::kUnauthenticated) {
      CKPTD_RETURN_IF_ERROR(SendError(socket, ids.status(), deadline));
    }
    return ids.status();
  }
  return SendSegments(socket, *ids, lookup, deadline);
}

}  // namespace ckptd
