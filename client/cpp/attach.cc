#include "client/cpp/attach.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "common/base/status.h"

namespace ckptd {
inline namespace client {
namespace {

constexpr size_t kTokenChars = 32;
constexpr size_t kHeaderBytes = 16;
constexpr std::array<char, 4> kMagic = {'C', 'K', 'P', '1'};
constexpr uint32_t kMaxSentenceBytes = 64 << 10;
// 4 PiB in default segments. A larger number is an invalid answer.
constexpr size_t kMaxSegments = size_t{1} << 24;

struct Header {
  uint32_t status = 0;
  uint32_t fds = 0;
  uint32_t remaining = 0;
};

absl::Status Broken(const AttachRequest& request, std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidReply,
                   fmt::format("fetching a shard's memory at {}: {}; client and daemon do not fit "
                               "together, update the older one",
                               request.fd_socket, why),
                   {{"address", request.fd_socket}});
}

// Inconsistent numbers come from the daemon, so the error says that its answer is invalid.
absl::Status AsReply(absl::Status status, const AttachRequest& request) {
  return ReasonOf(status) == reason::kInvalidRequest ? Broken(request, MessageOf(status)) : status;
}

uint32_t LittleEndian(std::span<const std::byte> bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  return value;
}

// The daemon refused: returns its code and sentence.
absl::Status ReadRefusal(int socket, uint32_t code, const AttachRequest& request,
                         Deadline deadline) {
  CKPTD_ASSIGN_OR_RETURN(const Received length, RecvExactly(socket, 4, 0, deadline));
  const uint32_t bytes = LittleEndian(length.bytes);
  if (code > 16 || bytes > kMaxSentenceBytes) return Broken(request, "its refusal is malformed");
  std::string sentence;
  if (bytes > 0) {
    CKPTD_ASSIGN_OR_RETURN(const Received text, RecvExactly(socket, bytes, 0, deadline));
    sentence.assign(reinterpret_cast<const char*>(text.bytes.data()), text.bytes.size());
  }
  const auto status = static_cast<absl::StatusCode>(code);
  const std::string why = status == absl::StatusCode::kUnauthenticated
                              ? std::string(reason::kTokenInvalid)
                              : absl::StatusCodeToString(status);
  return MakeError(status, why,
                   fmt::format("fetching a shard's memory at {}: {}", request.fd_socket, sentence),
                   {{"address", request.fd_socket}});
}

absl::StatusOr<Header> ParseHeader(std::span<const std::byte> bytes, const AttachRequest& request) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return Broken(request, "the answer does not start as one of ckptd");
  }
  return Header{LittleEndian(bytes.subspan(4, 4)), LittleEndian(bytes.subspan(8, 4)),
                LittleEndian(bytes.subspan(12, 4))};
}

// How many descriptors the daemon sends: one per segment, none for CUDA IPC.
size_t DescriptorsOf(const AttachRequest& request) {
  return request.ipc_handle.empty() ? request.segment_bytes.size() : 0;
}

// Receives one message and appends its descriptors. True if more will follow.
absl::StatusOr<bool> ReceiveSome(int socket, const AttachRequest& request, Deadline deadline,
                                 std::vector<UniqueFd>& fds) {
  const size_t missing = DescriptorsOf(request) - fds.size();
  CKPTD_ASSIGN_OR_RETURN(Received message,
                         RecvExactly(socket, kHeaderBytes, kMaxFdsPerMessage, deadline));
  CKPTD_ASSIGN_OR_RETURN(const Header header, ParseHeader(message.bytes, request));
  if (header.status != 0) return ReadRefusal(socket, header.status, request, deadline);
  if (header.fds != message.fds.size() || header.fds > missing ||
      header.remaining != missing - header.fds || (header.fds == 0 && missing > 0)) {
    return Broken(request, fmt::format("it sends {} of {} announced descriptors, {} to come, where "
                                       "{} were missing",
                                       message.fds.size(), header.fds, header.remaining, missing));
  }
  std::move(message.fds.begin(), message.fds.end(), std::back_inserter(fds));
  return header.remaining > 0;
}

MapMode MapModeOf(AttachMode mode) {
  switch (mode) {
    case AttachMode::kPrivate:
      return MapMode::kPrivate;
    case AttachMode::kExclusive:
      return MapMode::kSharedWritable;
    case AttachMode::kShared:
      break;
  }
  return MapMode::kSharedReadOnly;
}

absl::Status CheckRequest(const AttachRequest& request) {
  const bool hex = std::all_of(request.token.begin(), request.token.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
  if (!hex || request.token.size() != kTokenChars) {
    return Broken(request, "the token is not 32 hex characters");
  }
  if (request.fd_socket.empty() || request.fd_socket.front() != '/') {
    return Broken(request, "the socket's path is not absolute");
  }
  if (request.segment_bytes.size() > kMaxSegments) return Broken(request, "too many segments");
  uint64_t total = 0;
  for (const uint64_t bytes : request.segment_bytes) {
    if (bytes == 0 || bytes > std::numeric_limits<uint64_t>::max() - total) {
      return Broken(request, "the sizes of the segments make no sense");
    }
    total += bytes;
  }
  return absl::OkStatus();
}

// Maps everything, but does not take the lease.
absl::StatusOr<Attached> Map(const LeasedSegments& segments, const AttachRequest& request) {
  Attached out;
  if (request.segment_bytes.empty()) return out;
  if (!request.device_uuid.empty()) {
    const uint64_t bytes = request.segment_bytes.front();
    CKPTD_ASSIGN_OR_RETURN(
        out.device, request.ipc_handle.empty()
                        ? DeviceMemory::Import(segments.fds.front(), request.device_uuid, bytes,
                                               request.mode)
                        : DeviceMemory::Open(request.ipc_handle, request.device_uuid, bytes,
                                             request.mode));
    out.slab_bytes = request.slab_bytes;
    return out;
  }
  CKPTD_ASSIGN_OR_RETURN(out.mapping,
                         MapSlab(segments.fds, request.segment_bytes,
                                 {.mode = MapModeOf(request.mode), .populate = request.populate}));
  out.slab_bytes = out.mapping.bytes();
  return out;
}

}  // namespace

absl::StatusOr<LeasedSegments> FetchSegments(const AttachRequest& request) {
  CKPTD_RETURN_IF_ERROR(CheckRequest(request));
  const Deadline deadline = std::chrono::steady_clock::now() + request.timeout;
  CKPTD_ASSIGN_OR_RETURN(UniqueFd connection, ConnectUnix(request.fd_socket, deadline));
  return FetchSegmentsFrom(std::move(connection), request, deadline);
}

absl::StatusOr<LeasedSegments> FetchSegmentsFrom(UniqueFd connection, const AttachRequest& request,
                                                 Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(CheckRequest(request));
  LeasedSegments out;
  out.lease = std::move(connection);
  const auto token = std::as_bytes(std::span(request.token));
  CKPTD_RETURN_IF_ERROR(SendWithFds(out.lease.get(), token, {}, deadline));
  out.fds.reserve(DescriptorsOf(request));
  bool more = true;
  while (more) {
    absl::StatusOr<bool> rest = ReceiveSome(out.lease.get(), request, deadline, out.fds);
    if (!rest.ok()) return AsReply(rest.status(), request);
    more = *rest;
  }
  return out;
}

Attached& Attached::operator=(Attached&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  lease = std::move(other.lease);
  mapping = std::move(other.mapping);
  device = std::move(other.device);
  slab_bytes = other.slab_bytes;
  return *this;
}

void Attached::Reset() {
  mapping.Reset();
  slab_bytes = 0;
  device.Reset(std::move(lease));
}

absl::StatusOr<Attached> MapSegments(LeasedSegments segments, const AttachRequest& request) {
  absl::StatusOr<Attached> out = Map(segments, request);
  if (!out.ok()) {
    if (!request.device_uuid.empty()) EndLease(std::move(segments.lease), request.device_uuid);
    return AsReply(out.status(), request);
  }
  out->lease = std::move(segments.lease);
  return out;
}

absl::StatusOr<Attached> Attach(const AttachRequest& request) {
  CKPTD_ASSIGN_OR_RETURN(LeasedSegments segments, FetchSegments(request));
  return MapSegments(std::move(segments), request);
}

}  // namespace client
}  // namespace ckptd
