// How one daemon asks another one on its host for descriptors of its memory segments, over a Unix
// stream socket. All numbers are little-endian.
//
//   request:  "CKPM", uint32 count, secret (32 bytes), count * uint64 segment id
//   answer:   messages of "CKPM", uint32 status, uint32 descriptors in this
//             message, uint32 still to come; at most 128 descriptors each, in
//             the order asked. A status other than 0 (a canonical code) is
//             followed by uint32 length and that many bytes of a sentence.
//
// A connection carries one request. The answering side closes it.
#ifndef CKPTD_SERVER_COMM_HOST_PEER_PROTOCOL_H_
#define CKPTD_SERVER_COMM_HOST_PEER_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd_passing.h"
#include "common/base/posix.h"

namespace ckptd {

// The group's secret, which only its daemons know.
inline constexpr size_t kPeerSecretBytes = 32;
// The most segments in one request: 16 TiB in default segments.
inline constexpr uint32_t kMaxPeerSegments = 65'536;

// Returns a descriptor of the segment with that id.
using SegmentLookup = std::function<absl::StatusOr<UniqueFd>(uint64_t id)>;

// The asking side: fetches descriptors of the segments `ids`, in that order. Errors: those of
// fd_passing.h, and the other side's answers.
absl::StatusOr<std::vector<UniqueFd>> FetchPeerSegments(const std::string& path,
                                                        const std::string& secret,
                                                        std::span<const uint64_t> ids,
                                                        Deadline deadline);

// The same over an open connection, which the caller closes.
absl::StatusOr<std::vector<UniqueFd>> AskPeer(int socket, const std::string& secret,
                                              std::span<const uint64_t> ids, Deadline deadline);

// The answering side, for one connection, which the caller closes. With an empty secret every
// request is refused. Returns an error if the request was refused or broken off.
absl::Status AnswerPeer(int socket, const std::string& secret, const SegmentLookup& lookup,
                        Deadline deadline);

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_HOST_PEER_PROTOCOL_H_
