#include "server/keeper/keeper_wire.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr off_t kMaxRecordBytes = off_t{1} << 30;
constexpr int kRecordSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status NoRecord(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch, "reading its record: " + why);
}

// `write` fills it.
template <typename Write>
absl::StatusOr<UniqueFd> SealedRecord(Write write) {
  UniqueFd fd = NewMemfd("ckptd-record");
  if (!fd.valid()) return ErrnoStatus(errno, "making a record for the keeper");
  if (!write(fd.get()) || ::fcntl(fd.get(), F_ADD_SEALS, kRecordSeals) != 0) {
    return ErrnoStatus(errno, "writing a record for the keeper");
  }
  return fd;
}

}  // namespace

absl::Status SendPacket(int socket, const google::protobuf::MessageLite& message,
                        const std::vector<int>& fds, Deadline deadline) {
  const std::string bytes = message.SerializeAsString();
  if (bytes.empty() || bytes.size() >= kMaxKeeperPacket) {
    return absl::InternalError(fmt::format("a packet of {} bytes for the keeper", bytes.size()));
  }
  return SendWithFds(socket, std::as_bytes(std::span(bytes)), fds, deadline);
}

absl::StatusOr<Received> ReceivePacket(int socket, Deadline deadline) {
  CKPTD_ASSIGN_OR_RETURN(Received received,
                         RecvWithFds(socket, kMaxKeeperPacket, kMaxFdsPerMessage, deadline));
  if (!received.bytes.empty()) return received;
  return MakeError(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable,
                   "reading from the keeper's socket: the other side has closed it");
}

absl::Status ParsePacket(const std::vector<std::byte>& bytes, google::protobuf::MessageLite& out) {
  // A packet that fills the room may have been longer.
  if (bytes.size() < kMaxKeeperPacket &&
      out.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("reading from the keeper's socket: {} bytes are no message of it",
                               bytes.size()));
}

absl::StatusOr<std::string> RecordBytes(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0 ||
      info.st_size > kMaxRecordBytes) {
    return NoRecord("it is no file of up to 1 GiB");
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  CKPTD_RETURN_IF_ERROR(
      PreadFull(fd, 0, std::as_writable_bytes(std::span(bytes)), "a record of the keeper"));
  return bytes;
}

absl::StatusOr<UniqueFd> CopyRecord(int file) {
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes, RecordBytes(file));
  return SealedRecord([&](int fd) { return ::write(fd, bytes.data(), bytes.size()) ==
                                           static_cast<ssize_t>(bytes.size()); });
}

absl::StatusOr<UniqueFd> WriteRecord(const google::protobuf::MessageLite& body) {
  v1::KeptRecord record;
  record.set_format(kKeeperFormat);
  record.set_version(CKPTD_VERSION);
  *record.mutable_body() = body.SerializeAsString();
  record.set_digest(Xxh3(record.body()));
  return SealedRecord([&](int fd) { return record.SerializeToFileDescriptor(fd); });
}

absl::Status ReadRecord(int fd, google::protobuf::MessageLite& body) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kRecordSeals) != kRecordSeals) return NoRecord("it is no sealed memfd");
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes, RecordBytes(fd));
  v1::KeptRecord record;
  if (!record.ParseFromString(bytes)) return NoRecord("it is no KeptRecord");
  if (record.format() != kKeeperFormat) {
    return NoRecord(fmt::format("ckptd {} wrote it in format {}, this one reads format {}",
                                record.version().substr(0, 64), record.format(), kKeeperFormat));
  }
  if (Xxh3(record.body()) != record.digest()) return NoRecord("its digest does not hold");
  if (!body.ParseFromString(record.body())) return NoRecord("its body is no message of that kind");
  return absl::OkStatus();
}

}  // namespace ckptd
