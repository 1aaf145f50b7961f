// Feeds what a keeper and the daemons after it take from others: packets on its socket, and records
// in memory. The keeper goes on for everybody else, ends only when it is told to, and no descriptor
// stays behind; a record that is accepted describes tensors inside of its memory.
//
// First byte: bit 0 says packets, each with a byte for its descriptors (0 to 3), one for its length,
// and its bytes. Otherwise a record: bit 1 says of a lease, bit 2 its raw bytes instead of its body.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/fd_passing.h"
#include "common/base/logging.h"
#include "server/keeper/keeper.h"
#include "server/keeper/keeper_client.h"
#include "server/rpc/kept_record.h"
#include "tests/fuzz/properties.h"
#include "tests/testing/temp_folder.h"

namespace ckptd::fuzz {
namespace {

constexpr size_t kMostPackets = 64;
constexpr std::chrono::seconds kPatience{20};

Deadline Soon() { return std::chrono::steady_clock::now() + kPatience; }

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

class RunningKeeper {
 public:
  explicit RunningKeeper(const std::string& path)
      : keeper_(Keeper::Open(path).value()),
        thread_([this] {
          keeper_->Run(stop_.get(), std::chrono::milliseconds(0));
          keeper_.reset();  // as a process that ends
        }) {}
  ~RunningKeeper() {
    Require(::eventfd_write(stop_.get(), 1) == 0, "an eventfd can be written");
    thread_.join();
  }

 private:
  std::unique_ptr<Keeper> keeper_;
  const UniqueFd stop_{::eventfd(0, EFD_CLOEXEC)};
  std::thread thread_;
};

// Says the packets in `input`, and hears all answers. Whether one of them told the keeper to end.
bool SayAll(const std::string& path, std::span<const uint8_t> input) {
  const UniqueFd socket = ConnectToKeeper(path, Soon()).value();
  const UniqueFd passed = NewMemfd("passed");
  bool told_to_end = false;
  for (size_t i = 0; i < kMostPackets && input.size() >= 2; ++i) {
    const std::vector<int> fds(input[0] % 4, passed.get());
    const auto bytes = input.subspan(2, std::min<size_t>(input[1], input.size() - 2));
    input = input.subspan(2 + bytes.size());
    v1::KeeperRequest request;
    told_to_end = told_to_end || (request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) &&
                                  request.has_end());
    if (bytes.empty() || !SendWithFds(socket.get(), std::as_bytes(bytes), fds, Soon()).ok()) break;
  }
  ::shutdown(socket.get(), SHUT_WR);
  for (;;) {
    const auto answer = RecvWithFds(socket.get(), kMaxKeeperPacket, kMaxFdsPerMessage, Soon());
    Require(!absl::IsDeadlineExceeded(answer.status()), "each packet is answered");
    if (!answer.ok() || answer->bytes.empty()) return told_to_end;
  }
}

// A daemon that has nothing to do with the packets, and its successor.
void CheckServesOthers(const std::string& path) {
  const std::string owner = "well-behaved";
  {
    const auto client = KeeperClient::Start(path, owner, kPatience);
    std::vector<UniqueFd> fds;
    for (int i = 0; i < 2; ++i) fds.push_back(NewMemfd("kept"));
    client->Put("a", std::move(fds));
  }
  const auto entries = KeeperClient::Start(path, owner, kPatience)->Entries().value();
  Require(entries.count("a") == 1 && entries.at("a").size() == 2, "others are served");
}

void TryPackets(std::span<const uint8_t> input) {
  // The log opens its descriptor with the first line; refusals are many and say nothing here.
  SetLogLevel(LogLevel::kOff);
  const size_t before = OpenDescriptors();
  {
    const TempFolder folder;
    const RunningKeeper keeper(folder / "k.sock");
    if (!SayAll(folder / "k.sock", input)) CheckServesOthers(folder / "k.sock");
  }
  Require(OpenDescriptors() == before, "no descriptor stays open");
}

void CheckAccepted(const KeptFromRecord& kept) {
  const Shard& shard = *kept.checkpoint.shard;
  for (const PlannedTensor& tensor : shard.plan.tensors) {
    Require(tensor.bytes <= tensor.padded_bytes && tensor.padded_bytes <= shard.plan.slab_bytes &&
                tensor.offset <= shard.plan.slab_bytes - tensor.padded_bytes,
            "each tensor lies in the slab");
  }
  Require(shard.digests.size() == shard.plan.tensors.size(), "each tensor has a digest");
  Require(shard.file_of.size() == shard.plan.tensors.size(), "each tensor has a file");
}

template <typename Message>
absl::StatusOr<Message> ReadBack(const std::string& bytes, bool raw) {
  Message message;
  UniqueFd fd;
  if (raw) {
    fd = NewMemfd("record");
    Require(::write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "it is written");
    CKPTD_ASSIGN_OR_RETURN(fd, CopyRecord(fd.get()));
  } else if (message.ParseFromString(bytes)) {
    fd = WriteRecord(message).value();
  } else {
    return absl::CancelledError("no message");
  }
  CKPTD_RETURN_IF_ERROR(ReadRecord(fd.get(), message));
  return message;
}

absl::Status TryCheckpoint(const std::string& bytes, bool raw) {
  CKPTD_ASSIGN_OR_RETURN(const v1::KeptCheckpoint message, ReadBack<v1::KeptCheckpoint>(bytes, raw));
  const auto rank = static_cast<uint32_t>(std::max(message.rank(), 0));
  const auto world_size = static_cast<uint32_t>(std::max(message.world_size(), 0));
  CKPTD_ASSIGN_OR_RETURN(const KeptFromRecord kept, FromProto(message, rank, world_size));
  CheckAccepted(kept);
  return absl::OkStatus();
}

absl::Status TryLease(const std::string& bytes, bool raw) {
  CKPTD_ASSIGN_OR_RETURN(const v1::KeptLease message, ReadBack<v1::KeptLease>(bytes, raw));
  CKPTD_ASSIGN_OR_RETURN(const LeaseInfo lease, FromProto(message));
  Require(lease.mode != AttachMode::kExclusive, "no EXCLUSIVE lease comes back");
  return absl::OkStatus();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> input(data + 1, size - 1);
  if ((data[0] & 1) != 0) {
    TryPackets(input);
    return 0;
  }
  const std::string bytes(input.begin(), input.end());
  const bool raw = (data[0] & 4) != 0;
  const absl::Status status = (data[0] & 2) != 0 ? TryLease(bytes, raw) : TryCheckpoint(bytes, raw);
  if (!status.ok() && !absl::IsCancelled(status)) RequireGoodError(status);
  return 0;
}

}  // namespace ckptd::fuzz
