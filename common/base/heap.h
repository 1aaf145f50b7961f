// Gives memory that was freed back to the system.
#ifndef CKPTD_COMMON_BASE_HEAP_H_
#define CKPTD_COMMON_BASE_HEAP_H_

namespace ckptd {

// Returns what the heap keeps of freed memory, if that is 32 MiB or more. The C library keeps it for
// later: many small blocks, as tables of tensors are, stay with the process for good. Takes some
// microseconds if there is little to give. Thread-safe.
void ReturnFreeHeap();

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_HEAP_H_
