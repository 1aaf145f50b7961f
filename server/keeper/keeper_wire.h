// Packets between a daemon and its keeper (proto/ckptd/v1/keeper.proto), and the records in memfds.
// Every foreign length is checked. Thread-safe.
#ifndef CKPTD_SERVER_KEEPER_KEEPER_WIRE_H_
#define CKPTD_SERVER_KEEPER_KEEPER_WIRE_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/keeper.pb.h"
#include "common/base/fd_passing.h"
#include "common/base/status.h"

namespace ckptd {

inline constexpr uint32_t kKeeperFormat = 1;
inline constexpr size_t kMaxKeeperPacket = 4096;

absl::Status SendPacket(int socket, const google::protobuf::MessageLite& message,
                        const std::vector<int>& fds, Deadline deadline);

template <typename Message>
struct Packet {
  Message message;
  std::vector<UniqueFd> fds;
};

// The bytes of a packet, for ParsePacket. Errors: RecvWithFds's; Unavailable DAEMON_UNREACHABLE if
// the other side has closed.
absl::StatusOr<Received> ReceivePacket(int socket, Deadline deadline);
// InvalidArgument INVALID_REQUEST if `bytes` are no such message.
absl::Status ParsePacket(const std::vector<std::byte>& bytes, google::protobuf::MessageLite& out);

template <typename Message>
absl::StatusOr<Packet<Message>> ReceiveMessage(int socket, Deadline deadline) {
  CKPTD_ASSIGN_OR_RETURN(Received received, ReceivePacket(socket, deadline));
  Packet<Message> packet;
  CKPTD_RETURN_IF_ERROR(ParsePacket(received.bytes, packet.message));
  packet.fds = std::move(received.fds);
  return packet;
}

// Sends all of `fds`, in as many packets as they need. `fill(to_come)` makes the message of one,
// `answered()` is called after each.
template <typename Fill, typename Answered>
absl::Status SendEntry(int socket, const std::vector<UniqueFd>& fds, Deadline deadline, Fill fill,
                       Answered answered) {
  for (size_t sent = 0; sent < fds.size();) {
    const size_t count = std::min(fds.size() - sent, kMaxFdsPerMessage);
    std::vector<int> raw;
    for (size_t i = 0; i < count; ++i) raw.push_back(fds[sent + i].get());
    sent += count;
    const auto to_come = static_cast<uint32_t>(fds.size() - sent);
    CKPTD_RETURN_IF_ERROR(SendPacket(socket, fill(to_come), raw, deadline));
    CKPTD_RETURN_IF_ERROR(answered());
  }
  return absl::OkStatus();
}

// A sealed memfd with that body and its digest.
absl::StatusOr<UniqueFd> WriteRecord(const google::protobuf::MessageLite& body);
// The bytes of a record's file. Errors: as ReadRecord.
absl::StatusOr<std::string> RecordBytes(int fd);
// A sealed memfd with the same bytes, of any file that is no larger than a record may be.
absl::StatusOr<UniqueFd> CopyRecord(int file);
// Reads it. Errors: DataLoss DIGEST_MISMATCH if its digest does not hold, it is no record, or one of
// another format.
absl::Status ReadRecord(int fd, google::protobuf::MessageLite& body);

}  // namespace ckptd

#endif  // CKPTD_SERVER_KEEPER_KEEPER_WIRE_H_
