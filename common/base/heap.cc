#include "common/base/heap.h"

#include <malloc.h>

#include <cstddef>

namespace ckptd {

void ReturnFreeHeap() {
  constexpr size_t kWorthwhile = size_t{32} << 20;
  if (::mallinfo2().fordblks >= kWorthwhile) ::malloc_trim(0);
}

}  // namespace ckptd
