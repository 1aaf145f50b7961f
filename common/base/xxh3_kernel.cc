// Compiled once per vector width, each time under another name (CKPTD_XXH3_NAME). The namespaces
// of xxhash keep the inlined copies apart.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace ckptd::internal {

uint64_t CKPTD_XXH3_NAME(const void* data, size_t bytes);
uint64_t CKPTD_XXH3_NAME(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

#define CKPTD_XXH3_JOIN_INNER(a, b) a##b
#define CKPTD_XXH3_JOIN(a, b) CKPTD_XXH3_JOIN_INNER(a, b)
#define CKPTD_XXH3_PART(part) CKPTD_XXH3_JOIN(CKPTD_XXH3_NAME, part)

// The state is stored in an Xxh3Stream.
static_assert(sizeof(XXH3_state_t) == 576 && alignof(XXH3_state_t) == 64);

void CKPTD_XXH3_PART(_reset)(void* state);
void CKPTD_XXH3_PART(_reset)(void* state) {
  auto* typed = static_cast<XXH3_state_t*>(state);
  XXH3_INITSTATE(typed);
  XXH3_64bits_reset(typed);
}

void CKPTD_XXH3_PART(_update)(void* state, const void* data, size_t bytes);
void CKPTD_XXH3_PART(_update)(void* state, const void* data, size_t bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, bytes);
}

uint64_t CKPTD_XXH3_PART(_value)(const void* state);
uint64_t CKPTD_XXH3_PART(_value)(const void* state) {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state));
}

}  // namespace ckptd::internal
