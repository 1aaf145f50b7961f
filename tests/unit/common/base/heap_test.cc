#include "common/base/heap.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <vector>

namespace ckptd {
namespace {

// Resident bytes of this process.
size_t Resident() {
  size_t all = 0;
  size_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * 4096;
}

TEST(Heap, GoesBackToTheSystemOnceItsBlocksWereFreed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's heap is not the C library's";
#endif
  constexpr size_t kBlocks = 500'000;
  std::vector<std::unique_ptr<char[]>> blocks(kBlocks);
  for (auto& block : blocks) block = std::make_unique<char[]>(200);
  const std::unique_ptr<char[]> last = std::make_unique<char[]>(200);  // the heap cannot shrink
  blocks.clear();
  const size_t before = Resident();
  ReturnFreeHeap();
  EXPECT_LT(Resident() + (size_t{80} << 20), before);
}

}  // namespace
}  // namespace ckptd
