#include "server/memory/host/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "server/memory/host/proc_file.h"

namespace ckptd {
namespace {

// The kernel's own limits are lower. Larger numbers in a list are ignored.
constexpr uint64_t kMaxNumber = 1 << 16;

// The numbers of a list like "0-3,8": sorted, each once.
std::vector<unsigned> NumbersOf(std::string_view list) {
  std::vector<unsigned> numbers;
  for (const std::string_view part : SplitText(list, ',')) {
    const std::optional<uint64_t> first = LeadingNumber(part);
    const size_t dash = part.find('-');
    const std::optional<uint64_t> last =
        dash == part.npos ? first : LeadingNumber(part.substr(dash + 1));
    if (!first.has_value() || !last.has_value() || *last >= kMaxNumber) continue;
    for (uint64_t n = *first; n <= *last; ++n) numbers.push_back(static_cast<unsigned>(n));
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

absl::Status NoSuchNode(std::string_view wanted, const std::vector<NumaNode>& nodes) {
  std::vector<unsigned> numbers;
  for (const NumaNode& node : nodes) numbers.push_back(node.number);
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
      fmt::format("checking --numa {}: use auto, off or a node of this machine that has "
                  "memory ({})",
                  wanted, fmt::join(numbers, ", ")));
}

std::optional<unsigned> NodeOfAll(const std::vector<NumaNode>& nodes,
                                  const std::vector<unsigned>& cores) {
  for (const NumaNode& node : nodes) {
    if (!cores.empty() &&
        std::includes(node.cores.begin(), node.cores.end(), cores.begin(), cores.end())) {
      return node.number;
    }
  }
  return std::nullopt;
}

std::optional<unsigned> NodeInBlocks(const std::vector<NumaNode>& nodes, NumaPlace place) {
  std::vector<unsigned> with_cores;
  for (const NumaNode& node : nodes) {
    if (!node.cores.empty()) with_cores.push_back(node.number);
  }
  if (place.local_size < 2 || with_cores.size() < 2) return std::nullopt;
  const uint64_t block = uint64_t{place.local_rank % place.local_size} * with_cores.size();
  return with_cores[block / place.local_size];
}

}  // namespace

std::vector<NumaNode> ReadNumaNodes(const std::string& root) {
  const std::string folder = root + "sys/devices/system/node/";
  std::vector<NumaNode> nodes;
  for (const unsigned number : NumbersOf(ReadProcFile(folder + "has_memory").value_or(""))) {
    const std::string list = fmt::format("{}node{}/cpulist", folder, number);
    nodes.push_back({number, NumbersOf(ReadProcFile(list).value_or(""))});
  }
  return nodes;
}

std::vector<unsigned> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<unsigned> cores;
  for (unsigned core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

absl::StatusOr<std::optional<unsigned>> ChooseNumaNode(std::string_view wanted,
                                                       const std::vector<NumaNode>& nodes,
                                                       const std::vector<unsigned>& cores,
                                                       NumaPlace place) {
  if (wanted == "off") return std::nullopt;
  if (wanted != "auto") {
    for (const NumaNode& node : nodes) {
      if (fmt::format("{}", node.number) == wanted) return node.number;
    }
    return NoSuchNode(wanted, nodes);
  }
  if (nodes.size() < 2) return std::nullopt;
  const std::optional<unsigned> bound = NodeOfAll(nodes, cores);
  return bound.has_value() ? bound : NodeInBlocks(nodes, place);
}

absl::Status PreferNode(std::span<std::byte> memory, unsigned node) {
  constexpr unsigned kBits = std::numeric_limits<unsigned long>::digits;
  std::vector<unsigned long> mask(node / kBits + 1);
  mask[node / kBits] = 1UL << node % kBits;
  // The kernel uses one bit fewer than it is told.
  const long done = ::syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, mask.data(),
                              mask.size() * kBits + 1, 0);
  if (done == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("putting memory on NUMA node {}: {}; the kernel chooses the node (containers "
                  "need mbind in their seccomp profile, or CAP_SYS_NICE)",
                  node, std::strerror(errno)));
}

absl::Status CheckPreferNode(unsigned node) {
  constexpr size_t kPage = 4096;
  constexpr int kFlags = MAP_SHARED | MAP_ANONYMOUS;
  void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (page == MAP_FAILED) return ErrnoStatus(errno, "mapping a page");
  const Mapping mapping(page, kPage);
  return PreferNode(mapping.span(), node);
}

}  // namespace ckptd
