// NUMA nodes: on which of them a rank's memory lies, and having the kernel put it there.
#ifndef CKPTD_SERVER_MEMORY_HOST_NUMA_H_
#define CKPTD_SERVER_MEMORY_HOST_NUMA_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

struct NumaNode {
  unsigned number = 0;
  std::vector<unsigned> cores;  // may be none: a node of memory alone
};

// The nodes that have memory, by number; empty where the kernel shows none. `root` ends in '/'.
std::vector<NumaNode> ReadNumaNodes(const std::string& root = "/");

// Cores that this process may run on; empty when the kernel does not say.
std::vector<unsigned> AllowedCores();

struct NumaPlace {
  uint32_t local_rank = 0;
  uint32_t local_size = 1;  // ranks of this host
};

// Where the memory of a rank goes; none: wherever the kernel likes. `wanted` is
//   "off"     none
//   "auto"    none on a machine of one node. Else the node that has all of `cores`; where they
//             are of several, the ranks of the host take the nodes that have cores in blocks, as
//             launchers that bind processes do; a rank alone on its host takes none.
//   a number  that node
// Errors: InvalidArgument CONFIG_INVALID.
absl::StatusOr<std::optional<unsigned>> ChooseNumaNode(std::string_view wanted,
                                                       const std::vector<NumaNode>& nodes,
                                                       const std::vector<unsigned>& cores,
                                                       NumaPlace place);

// Pages of `memory`, a shared mapping, that are not present yet come from `node`, whoever
// touches them first; from others when it has none left. Errors: FailedPrecondition where the
// kernel or the container does not allow it.
absl::Status PreferNode(std::span<std::byte> memory, unsigned node);
// Whether it would: tries it on a page.
absl::Status CheckPreferNode(unsigned node);

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_NUMA_H_
