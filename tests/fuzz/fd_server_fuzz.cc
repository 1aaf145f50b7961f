// Connects to an fd socket that serves, and says arbitrary things on it. Nobody
// without a token gets a descriptor, every lease ends with its connection, and
// none of it leaves a descriptor behind.
//
// First byte: how many bytes are sent at a time. Second: bit 0 puts a good token in
// front, bit 1 in its upper case, bit 2 shows it twice, bit 3 waits for no answer.
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "common/base/fd_passing.h"
#include "server/catalog/lease_table.h"
#include "server/protocol/timing.h"
#include "server/rpc/fd_server.h"
#include "tests/fuzz/properties.h"
#include "tests/testing/core_values.h"
#include "tests/testing/temp_folder.h"

namespace ckptd::fuzz {
namespace {

constexpr char kName[] = "checkpoints/a";
constexpr size_t kHeaderBytes = 16;

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

// A daemon's part that serves shards, for the whole run.
class Serving {
 public:
  Serving() {
    const absl::Status loaded = MakeActive(catalog_, kName, RuleRequest(), 2 * kSmallSegment);
    Require(loaded.ok(), MessageOf(loaded));
    auto started = FdServer::Start(path(), leases_);
    Require(started.ok(), MessageOf(started.status()));
    server_ = std::move(started).value();
  }
  ~Serving() { server_.reset(); }
  std::string path() const { return folder_ / "fd.sock"; }
  LeaseTable& leases() { return leases_; }

 private:
  const TempFolder folder_;
  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(4);
  Catalog catalog_{*memory_, 0, 1};
  LeaseTable leases_{catalog_};
  std::unique_ptr<FdServer> server_;
};

// What came back, until the server closed. Its descriptors are closed.
struct Answer {
  std::string bytes;
  size_t fds = 0;
};
Answer ReadAll(int socket) {
  Answer answer;
  for (;;) {
    const auto part = RecvWithFds(socket, 4096, kMaxFdsPerMessage, Soon());
    // Reset by a server that had not read all: as good an end as any.
    if (!part.ok() || part->bytes.empty()) return answer;
    answer.bytes.append(reinterpret_cast<const char*>(part->bytes.data()), part->bytes.size());
    answer.fds += part->fds.size();
  }
}

void CheckAnswer(const Answer& answer, bool proven) {
  Require(proven || answer.fds == 0, "no descriptors without a token");
  if (answer.bytes.empty()) return;
  Require(answer.bytes.size() >= kHeaderBytes && answer.bytes.starts_with("CKP1"), "it is framed");
  uint32_t fields[4] = {};
  std::memcpy(fields, answer.bytes.data() + 4, 12);
  if (fields[0] == 0) {
    Require(
        proven && answer.bytes.size() == kHeaderBytes && answer.fds == fields[1] && fields[2] == 0,
        "as many descriptors come as it says");
    return;
  }
  Require(!proven && answer.bytes.size() > kHeaderBytes + 4, "a refusal has a sentence");
  std::memcpy(&fields[3], answer.bytes.data() + kHeaderBytes, 4);
  Require(answer.bytes.size() == kHeaderBytes + 4 + fields[3], "it is as long as it says");
}

// What the input says, and whether it proves itself with a token.
struct Script {
  std::string said;
  bool proven = false;
};
Script ScriptOf(std::span<const uint8_t> input, LeaseTable& leases) {
  Script script;
  const uint8_t flags = input[1];
  if ((flags & 1) != 0) {
    const auto ticket = leases.Open(kName, AttachMode::kShared);
    Require(ticket.ok(), MessageOf(ticket.status()));
    script.said = ticket->token;
    if ((flags & 2) != 0) {
      std::transform(script.said.begin(), script.said.end(), script.said.begin(),
                     [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    }
    script.proven = script.said == ticket->token;
    if (!script.proven) leases.End(ticket->lease);
    if ((flags & 4) != 0) script.said += script.said;
  }
  script.said.append(reinterpret_cast<const char*>(input.data()) + 2, input.size() - 2);
  return script;
}

void FuzzSocket(std::span<const uint8_t> input) {
  static Serving serving;
  static const size_t descriptors = OpenDescriptors();
  if (input.size() < 2) return;
  const auto begin = Clock::now();
  const auto [said, proven] = ScriptOf(input, serving.leases());
  const size_t step = input[0] == 0 ? std::max<size_t>(said.size(), 1) : input[0];
  {
    const auto socket = ConnectUnix(serving.path(), Soon());
    Require(socket.ok(), "the server lives: " + MessageOf(socket.status()));
    auto rest = std::as_bytes(std::span(said));
    // What follows a token is not parted: thousands of bytes one by one are slow.
    const size_t parted = said.size() - std::min(said.size(), 2 * LeaseTable::kTokenLength);
    while (!rest.empty()) {
      const auto part =
          rest.first(rest.size() > parted ? std::min(step, rest.size()) : rest.size());
      if (!SendWithFds(socket->get(), part, {}, Soon()).ok()) break;  // it has closed
      rest = rest.subspan(part.size());
    }
    ::shutdown(socket->get(), SHUT_WR);
    const Answer answer = (input[1] & 8) == 0 ? ReadAll(socket->get()) : Answer();
    // On a machine that stood still meanwhile, tokens and patience are over.
    if (Clock::now() - begin < timing::kTokenPatience / 2) CheckAnswer(answer, proven);
  }
  Require(serving.leases().WaitUntilEmpty(Soon() + timing::kTokenLifetime) == 0,
          "a lease ends with its connection");
  static size_t runs = 0;
  if (++runs % 256 != 0) return;
  // What the server has just closed, it may be closing still.
  const Deadline patience = Soon();
  while (OpenDescriptors() > descriptors + 8) {
    Require(Clock::now() < patience, "no descriptor is left open");
  }
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzSocket({data, size});
  return 0;
}
