// How one daemon asks another one on its host for descriptors of its memory
// segments, over a Unix stream socket. All numbers little-endian.
//
//   request:  "CKPM", uint32 count, secret (32 bytes), count * uint64 segment id
//   answer:   messages of "CKPM", uint32 status, uint32 descriptors in this
//             message, uint32 still to come; at most 128 descriptors each, in
//             the order asked. A status other than 0 (a canonical code) is
//             followed by uint32 length and that many bytes of a sentence.
//
// One request per connection; the answering side closes.
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

// Of the group; only its daemons know it.
inline constexpr size_t kPeerSecretBytes = 32;
// Segments in one request at most: 16 TiB in default segments.
inline constexpr uint32_t kMaxPeerSegments = 65'536;

// Gives a descriptor of the segment with that id.
using SegmentLookup = std::function<absl::StatusOr<UniqueFd>(uint64_t id)>;

// The asking side: descriptors of the segments `ids`, in that order. Errors: as
// in fd_passing.h, and what the other side answers.
absl::StatusOr<std::vector<UniqueFd>> FetchPeerSegments(const std::string& path,
                                                        const std::string& secret,
                                                        std::span<const uint64_t> ids,
                                                        Deadline deadline);

// The asking side, over a connection that exists already; the caller closes.
absl::StatusOr<std::vector<UniqueFd>> AskPeer(int socket, const std::string& secret,
                                              std::span<const uint64_t> ids, Deadline deadline);

// The answering side, for one connection. An empty secret lets nobody in. An
// error when the request was refused or broken off; the caller closes.
absl::Status AnswerPeer(int socket, const std::string& secret, const SegmentLookup& lookup,
                        Deadline deadline);

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_HOST_PEER_PROTOCOL_H_
