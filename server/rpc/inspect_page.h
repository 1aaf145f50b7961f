// Pages of a source's tensor table.
#ifndef CKPTD_SERVER_RPC_INSPECT_PAGE_H_
#define CKPTD_SERVER_RPC_INSPECT_PAGE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ckptd/v1/checkpoint_service.pb.h"
#include "common/source/index.h"

namespace ckptd {

// The page that `page_token` asks for. Files, format, metadata and aliases come with the first one;
// with `values` those, and opaque things, behind the tensors. Errors: InvalidArgument
// INVALID_REQUEST for a foreign token.
absl::StatusOr<v1::InspectCheckpointResponse> InspectPage(const CheckpointIndex& index,
                                                          const std::string& page_token,
                                                          uint32_t page_size, bool values = false);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_INSPECT_PAGE_H_
