// Lets a daemon answer arbitrary things: to a client that attaches a shard (the
// tables over gRPC, the descriptors over the fd socket), and to another daemon that
// asks for its memory. Whatever it says: what is accepted lies in the memory that
// came, and no descriptor stays open.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/attach.h"
#include "client/cpp/convert.h"
#include "client/cpp/shard.h"
#include "common/base/fd_passing.h"
#include "inputs.pb.h"
#include "server/comm/host/peer_protocol.h"
#include "tests/fuzz/message_input.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

constexpr int kMaxParts = 16;
constexpr int kMaxAsked = 1024;

Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(10); }

UniqueFd Opened(const UniqueFd& fd, int flags) {
  return UniqueFd(::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), flags | O_CLOEXEC));
}

UniqueFd Memory(off_t bytes) {
  UniqueFd fd(::memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Require(fd.valid() && ::ftruncate(fd.get(), bytes) == 0, "memory can be made");
  return fd;
}

// What a daemon can send: memory of several sizes and rights, and what is no memory.
// The corpus names them by their places.
std::vector<UniqueFd> MakeDescriptors() {
  std::vector<UniqueFd> fds;
  for (const off_t bytes : {4096, 8192, 65536, 5000, 0}) fds.push_back(Memory(bytes));
  fds.push_back(Opened(fds[2], O_RDONLY));
  fds.push_back(Opened(fds[2], O_WRONLY));
  fds.push_back(Opened(fds[2], O_PATH));
  const UniqueFd sealed = Memory(65536);
  const int seals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
  Require(::fcntl(sealed.get(), F_ADD_SEALS, seals) == 0, "memory can be sealed");
  fds.push_back(Opened(sealed, O_RDONLY));
  fds.push_back(Opened(sealed, O_RDWR));
  for (const char* path : {"/dev/null", "/", "/proc/self/maps", "/sys/kernel/fscaps"}) {
    fds.emplace_back(::open(path, O_RDONLY | O_CLOEXEC));
  }
  std::erase_if(fds, [](const UniqueFd& fd) { return !fd.valid(); });
  int ends[2] = {-1, -1};
  Require(::pipe2(ends, O_CLOEXEC) == 0, "a pipe can be made");
  fds.emplace_back(ends[0]);
  fds.emplace_back(ends[1]);
  return fds;
}

void AppendNumber(uint32_t value, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift);
}

std::string BytesOf(const AttachInput::Part& part, std::string_view magic) {
  if (!part.bytes().empty()) return part.bytes();
  std::string out(magic);
  for (const uint32_t field : {part.status(), part.announced(), part.to_come()}) {
    AppendNumber(field, out);
  }
  if (part.status() == 0) return out;
  AppendNumber(static_cast<uint32_t>(part.sentence().size()), out);
  return out + part.sentence();
}

// A connection on which the daemon has said all that it says, and hears.
struct Connection {
  UniqueFd ours;
  UniqueFd daemons;
};
Connection Answered(const AttachInput& input, std::string_view magic) {
  static const std::vector<UniqueFd> descriptors = MakeDescriptors();
  int raw[2] = {-1, -1};
  Require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, raw) == 0,
          "a pair of sockets can be made");
  Connection connection{UniqueFd(raw[0]), UniqueFd(raw[1])};
  for (int i = 0; i < std::min(input.parts_size(), kMaxParts); ++i) {
    const std::string bytes = BytesOf(input.parts(i), magic);
    std::vector<int> fds;
    for (const uint32_t which : input.parts(i).descriptors()) {
      if (fds.size() < kMaxFdsPerMessage) fds.push_back(descriptors[which % descriptors.size()].get());
    }
    const auto sent = SendWithFds(raw[1], std::as_bytes(std::span(bytes)), fds, Soon());
    Require(sent.ok(), "the kernel takes it: " + MessageOf(sent));
  }
  ::shutdown(raw[1], SHUT_WR);
  return connection;
}

// A refusal has the code that the daemon gave; anything else is an error of ours.
void CheckError(const AttachInput& input, const absl::Status& error) {
  const bool refuses = std::any_of(input.parts().begin(), input.parts().end(), [](const auto& part) {
    return part.status() != 0 || !part.bytes().empty();
  });
  if (!refuses) return RequireGoodError(error);
  Require(!error.ok(), "an error is one");
  RequireOneLine(MessageOf(error));
}

void CheckTensor(const Shard& shard, const ShardTensor& tensor) {
  Require(shard.Find(tensor.name) == &tensor, "a tensor is found");
  Require(tensor.bytes <= tensor.padded_bytes, "padding comes on top");
  Require(tensor.offset <= shard.slab_bytes() &&
              tensor.padded_bytes <= shard.slab_bytes() - tensor.offset,
          "tensors lie in the slab");
  if (tensor.padded_bytes == 0) return;
  // Memory that is not there would end the process.
  const volatile std::byte* const bytes = tensor.data;
  Require((bytes[0] | bytes[tensor.padded_bytes - 1]) == std::byte{0}, "memory that came is read");
  const std::span<std::byte> writable = shard.MutableBytes(tensor);
  Require(writable.empty() == (shard.mode() == AttachMode::kShared), "SHARED is for reading");
  if (!writable.empty()) writable.front() = writable.back() = std::byte{0};
}

absl::StatusOr<ShardTable> TableOf(const AttachInput& input) {
  ShardTable table;
  const uint64_t slab_bytes = input.acquired().slab_bytes();
  CKPTD_RETURN_IF_ERROR(AppendTensors(input.acquired().tensors(), slab_bytes, table));
  for (const auto& page : input.pages()) {
    CKPTD_RETURN_IF_ERROR(AppendTensors(page, slab_bytes, table));
  }
  return table;
}

void FuzzShard(const AttachInput& input) {
  const auto request = ToAttachRequest(input.acquired());
  if (!request.ok()) return RequireGoodError(request.status());
  auto table = TableOf(input);
  if (!table.ok()) return RequireGoodError(table.status());
  Connection connection = Answered(input, "CKP1");
  auto segments = FetchSegmentsFrom(std::move(connection.ours), *request, Soon());
  if (!segments.ok()) return CheckError(input, segments.status());
  Require(segments->fds.size() == request->segment_bytes.size(), "every segment has come");
  auto attached = MapSegments(*std::move(segments), *request);
  if (!attached.ok()) return RequireGoodError(attached.status());
  Require(attached->slab_bytes == input.acquired().slab_bytes(), "the slab is as large as it says");
  const auto shard = Shard::Create(*std::move(attached), *std::move(table), request->mode, "lease");
  if (!shard.ok()) return RequireGoodError(shard.status());
  for (const ShardTensor& tensor : shard->tensors()) CheckTensor(*shard, tensor);
  for (const auto& [alias, tensor] : shard->aliases()) {
    Require(tensor < shard->tensors().size() && shard->Find(alias) != nullptr, "aliases are names");
  }
}

void FuzzPeer(const AttachInput& input) {
  const auto& asked = input.segments_asked();
  const std::vector<uint64_t> ids(asked.begin(), asked.begin() + std::min(asked.size(), kMaxAsked));
  const Connection connection = Answered(input, "CKPM");
  const std::string secret(kPeerSecretBytes, 's');
  const auto fds = AskPeer(connection.ours.get(), secret, ids, Soon());
  if (!fds.ok()) return CheckError(input, fds.status());
  Require(fds->size() == ids.size(), "every segment has come");
  Require(std::all_of(fds->begin(), fds->end(), [](const UniqueFd& fd) { return fd.valid(); }),
          "they are descriptors");
}

void FuzzInspected(const AttachInput& input) {
  SourceInfo source;
  for (const auto& page : input.inspected()) {
    const absl::Status added = AppendSource(page, source);
    if (!added.ok()) return RequireGoodError(added);
  }
  for (const TensorEntry& tensor : source.index.tensors) {
    Require(tensor.pieces.front().file < source.index.files.size(), "files exist");
  }
}

// The lowest number that is free: it goes up when something stays open.
int NextDescriptor() { return UniqueFd(::dup(STDIN_FILENO)).get(); }

void FuzzAttach(const AttachInput& input) {
  (void)Answered({}, "");  // makes what stays open
  const int next = NextDescriptor();
  FuzzInspected(input);
  if (input.segments_asked().empty()) {
    FuzzShard(input);
  } else {
    FuzzPeer(input);
  }
  Require(NextDescriptor() == next, "no descriptor stays open");
}

}  // namespace
}  // namespace ckptd::fuzz

CKPTD_FUZZ_MESSAGE(ckptd::fuzz::AttachInput, ckptd::fuzz::FuzzAttach)
