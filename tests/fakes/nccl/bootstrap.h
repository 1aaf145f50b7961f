// How ranks find each other by a unique id: as in the real one, a thread of the process that made
// the id hears every rank once and tells all of them where the others are.
#ifndef CKPTD_TESTS_FAKES_NCCL_BOOTSTRAP_H_
#define CKPTD_TESTS_FAKES_NCCL_BOOTSTRAP_H_

#include <vector>

#include "tests/fakes/nccl/nccl_api.h"
#include "tests/fakes/nccl/wire.h"

namespace ckptd::fake_nccl {

// What a rank says of itself.
struct RankInfo {
  int rank = 0;
  int world = 0;
  int version = 0;
  int shares_gpu = 0;  // NCCL_MULTI_RANK_GPU_ENABLE
  std::uint64_t host = 0;
  unsigned char gpu[16] = {};
  Address address;
};

// Starts serving a fresh id in this process.
ncclResult_t ServeId(ncclUniqueId& id);

// Joins and connects to everybody: links[rank], none to oneself. Waits for all ranks, as long as
// nobody says `stop`.
ncclResult_t Join(const ncclUniqueId& id, RankInfo self, const Stop& stop,
                  std::vector<UniqueFd>& links);

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_FAKES_NCCL_BOOTSTRAP_H_
