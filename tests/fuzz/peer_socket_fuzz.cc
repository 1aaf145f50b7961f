// Feeds arbitrary bytes to a daemon's memory socket, which hands descriptors to
// whoever knows the group's secret. The first byte says in how many bytes at a time.
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "server/comm/host/peer_protocol.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

const std::string kSecret(kPeerSecretBytes, 's');
constexpr uint64_t kSegments = 300;  // ids below it exist
constexpr size_t kAnswerBytes = 16;

absl::StatusOr<UniqueFd> Lookup(uint64_t id) {
  if (id < kSegments) {
    UniqueFd fd(::memfd_create("segment", MFD_CLOEXEC));
    Require(fd.valid(), "descriptors are left");
    return fd;
  }
  return MakeError(absl::StatusCode::kNotFound, reason::kCheckpointNotFound,
                   "looking a segment up: there is none of that number; load again");
}

struct Answers {
  size_t fds = 0;
  uint32_t refused = 0;  // a status
};

// Everything that the daemon said, message by message.
Answers ReadAnswers(int socket) {
  Answers answers;
  for (;;) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    const auto first = RecvWithFds(socket, 1, kMaxFdsPerMessage, deadline);
    if (!first.ok() || first->bytes.empty()) return answers;
    Require(answers.refused == 0, "nothing comes after a refusal");
    const auto rest = RecvExactly(socket, kAnswerBytes - 1, 0, deadline);
    Require(rest.ok(), "an answer comes whole");
    uint32_t fields[3] = {};
    std::memcpy(fields, rest->bytes.data() + 3, sizeof(fields));
    Require(first->bytes[0] == std::byte{'C'}, "an answer begins as one");
    Require(first->fds.size() == fields[1], "as many descriptors come as it says");
    answers.fds += first->fds.size();
    answers.refused = fields[0];
    if (answers.refused == 0) continue;
    Require(first->fds.empty(), "a refusal brings no descriptor");
    const auto length = RecvExactly(socket, sizeof(uint32_t), 0, deadline);
    Require(length.ok(), "a refusal has a length");
    uint32_t bytes = 0;
    std::memcpy(&bytes, length->bytes.data(), sizeof(bytes));
    Require(bytes > 0 && RecvExactly(socket, bytes, 0, deadline).ok(), "a refusal has a sentence");
  }
}

void FuzzPeer(std::span<const uint8_t> input) {
  if (input.empty()) return;
  int raw[2] = {-1, -1};
  Require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, raw) == 0,
          "a pair of sockets can be made");
  const UniqueFd client(raw[0]);
  UniqueFd server(raw[1]);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  // A socket buffer holds few messages, however short they are.
  const size_t step = std::max<size_t>(input[0] == 0 ? input.size() : input[0], input.size() / 64);
  const auto bytes = std::as_bytes(input.subspan(1));
  for (size_t at = 0; at < bytes.size(); at += step) {
    const auto part = bytes.subspan(at, std::min(step, bytes.size() - at));
    Require(SendWithFds(client.get(), part, {}, deadline).ok(), "the kernel takes it");
  }
  ::shutdown(client.get(), SHUT_WR);
  const absl::Status answered = AnswerPeer(server.get(), kSecret, Lookup, deadline);
  server.Reset();
  const Answers answers = ReadAnswers(client.get());
  if (answered.ok()) {
    Require(answers.refused == 0, "who is answered is not refused");
  } else {
    RequireGoodError(answered);
  }
  const bool knows = bytes.size() >= 40 && std::memcmp(bytes.data() + 8, kSecret.data(), 32) == 0;
  Require(knows || answers.fds == 0, "only who knows the secret gets descriptors");
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzPeer({data, size});
  return 0;
}
