// What a rank asks the group to load.
#ifndef CKPTD_SERVER_LOAD_PROPOSAL_H_
#define CKPTD_SERVER_LOAD_PROPOSAL_H_

#include <cstdint>
#include <utility>

#include "server/protocol/domain.h"

namespace ckptd {

struct Proposal : IdentifiedRequest {
  Proposal(uint32_t from, IdentifiedRequest asked)
      : IdentifiedRequest(std::move(asked)), rank(from) {}

  uint32_t rank;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_PROPOSAL_H_
