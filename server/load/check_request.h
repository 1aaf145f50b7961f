// What is wrong with a request by itself, whoever takes it.
#ifndef CKPTD_SERVER_LOAD_CHECK_REQUEST_H_
#define CKPTD_SERVER_LOAD_CHECK_REQUEST_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/protocol/domain.h"

namespace ckptd {

// `doing`: "loading", or what else is asked. Errors: INVALID_REQUEST.
absl::Status CheckSource(std::string_view doing, const std::string& source);

// Whether a layout in rank form is that of the daemon's own rank. Errors: WRONG_RANK.
absl::Status CheckRankOf(std::string_view doing, const RankLayout& layout, uint32_t rank,
                         const std::string& source);

// The id by which a client is known that has asked for a load; it may be empty.
absl::Status CheckRequestId(std::string_view doing, const std::string& what,
                            const std::string& request_id);

// Checks a request against the group before anything is started. Errors:
// LAYOUT_INVALID, WRONG_WORLD_SIZE, WRONG_RANK, INVALID_REQUEST, HANDLE_KIND.
absl::Status CheckRequest(const LoadRequest& request, uint32_t rank, uint32_t world_size);

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_CHECK_REQUEST_H_
