// Compiled once per vector width, each time under another name (CKPTD_XXH3_NAME);
// the namespaces of xxhash keep the inlined copies apart.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace ckptd::internal {

uint64_t CKPTD_XXH3_NAME(const void* data, size_t bytes);
uint64_t CKPTD_XXH3_NAME(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace ckptd::internal
