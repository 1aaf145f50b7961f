// Small helpers of the services.
#ifndef CKPTD_SERVER_RPC_CALL_H_
#define CKPTD_SERVER_RPC_CALL_H_

#include <grpcpp/server_context.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/domain.h"

namespace ckptd {

// The caller's deadline, at most `longest` from now.
inline Deadline DeadlineOf(const grpc::ServerContext& context, std::chrono::nanoseconds longest) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::min<std::chrono::nanoseconds>(left, longest));
}

// Page tokens are decimal positions.
inline absl::StatusOr<size_t> PositionFrom(const std::string& token, size_t size) {
  size_t position = 0;
  const char* const end = token.data() + token.size();
  const auto [stop, error] = std::from_chars(token.data(), end, position);
  if (token.empty()) return size_t{0};
  if (error == std::errc() && stop == end && position <= size) return position;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   "reading page token \"" + token +
                       "\": it is not from this call; begin without one");
}

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_CALL_H_
