// NUMA nodes: chooses the node of a rank's memory, and has the kernel use it.
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
  std::vector<unsigned> cores;  // may be empty: a node with memory only
};

// The nodes that have memory, by number. Empty if the kernel shows none. `root` ends in '/'.
std::vector<NumaNode> ReadNumaNodes(const std::string& root = "/");

// The cores that this process may run on. Empty if the kernel does not say.
std::vector<unsigned> AllowedCores();

struct NumaPlace {
  uint32_t local_rank = 0;
  uint32_t local_size = 1;  // ranks on this host
};

// The node for the memory of a rank. None: the kernel chooses. `wanted` is
//   "off"     none
//   "auto"    none on a machine with one node. Otherwise the node that has all of `cores`. If
//             several nodes have them, the host's ranks take the nodes with cores in blocks, as
//             launchers that bind processes do. A rank alone on its host gets none.
//   a number  that node
// Errors: InvalidArgument CONFIG_INVALID.
absl::StatusOr<std::optional<unsigned>> ChooseNumaNode(std::string_view wanted,
                                                       const std::vector<NumaNode>& nodes,
                                                       const std::vector<unsigned>& cores,
                                                       NumaPlace place);

// Makes the kernel take absent pages of `memory`, a shared mapping, from `node`, whichever thread
// touches them first. If the node has none left, they come from others. Errors:
// FailedPrecondition if the kernel or the container does not allow it.
absl::Status PreferNode(std::span<std::byte> memory, unsigned node);
// Whether PreferNode would succeed. Tries it on one page.
absl::Status CheckPreferNode(unsigned node);

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_NUMA_H_
