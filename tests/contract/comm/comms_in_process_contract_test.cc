// The in-process communicator of other tests must not be more lenient than NCCL's.
#include <thread>

#include "tests/contract/comm/comm_contract.h"
#include "tests/testing/comms_in_process.h"

namespace ckptd {
namespace {

class ThreadsBench {
 public:
  void Run(const std::vector<uint32_t>& names, const std::function<void(const CommRank&)>& body) {
    CommsWorld world;
    CommsInProcess comms(world);
    CommRank self;
    self.names = names;
    self.comms = &comms;
    self.id = comms.MakeId().value();
    self.memory = [](uint64_t bytes) {
      return std::make_unique<BytesInProcess>(bytes, std::byte{0});
    };
    self.fill = [](StagedMemory& memory, uint64_t offset, uint64_t bytes, int value) {
      std::fill_n(reinterpret_cast<std::byte*>(memory.address()) + offset, bytes,
                  static_cast<std::byte>(value));
    };
    std::vector<std::thread> ranks;
    for (self.rank = 0; self.rank < names.size(); ++self.rank) ranks.emplace_back(body, self);
    for (std::thread& rank : ranks) rank.join();
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, CommContract, ThreadsBench);

}  // namespace
}  // namespace ckptd
