#include "tests/fakes/nccl/warn.h"

#include <atomic>

namespace ckptd::fake_nccl {
namespace {

std::atomic<const char*> last{""};

}  // namespace

ncclResult_t Warn(ncclResult_t result, const char* text) {
  last = text;
  return result;
}

const char* LastWarning() { return last; }

}  // namespace ckptd::fake_nccl
