// The parts of a daemon that are about keeping, as one process after the other has them.
#ifndef CKPTD_TESTS_TESTING_KEEPING_PROCESS_H_
#define CKPTD_TESTS_TESTING_KEEPING_PROCESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/digest.h"
#include "server/catalog/catalog.h"
#include "server/catalog/lease_table.h"
#include "server/daemon/keeping.h"
#include "tests/testing/core_values.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/small_memory.h"

namespace ckptd {

inline constexpr char kKeptName[] = "checkpoints/a";

struct KeepingProcess {
  explicit KeepingProcess(std::unique_ptr<DescriptorStore> store, uint32_t world_size = 1,
                          std::unique_ptr<HostMemory> with = MakeSmallMemory(4))
      : memory(std::move(with)),
        keeping(std::move(store), 0, world_size, 2),
        catalog(*memory, 0, world_size) {
    keeping.SetMemory(*memory);
    catalog.SetKeeper(&keeping);
    leases.SetKeeper(&keeping);
    keeping.Restore(catalog, leases);
  }
  ~KeepingProcess() {
    keeping.LeaveLeases();
    keeping.LeaveAll();
  }

  absl::Status Load(const LoadRequest& request = RuleRequest(), const std::string& name = kKeptName) {
    catalog.Begin(name, request);
    CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<ShardMemory> shard,
                           catalog.eviction().Allocate(CallOf(name, request), ShardOf(kSmallSegment)));
    const std::vector<std::byte> bytes(kSmallSegment, std::byte{0x5a});
    WriteBytes(shard->View(), 0, bytes);
    CommitCall commit = CommitOf(name);
    commit.digests.clear();
    if (request.digests) commit.digests = {TensorDigest(bytes)};
    return catalog.Publish(commit);
  }
  std::vector<std::string> Active() const {
    const auto names = catalog.ActiveNames();
    return {names.begin(), names.end()};
  }

  std::unique_ptr<HostMemory> memory;
  Keeping keeping;
  Catalog catalog;
  LeaseTable leases{catalog};
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_KEEPING_PROCESS_H_
