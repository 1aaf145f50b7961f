// The storage that a persistent id of torch's pickles names. Pure.
#ifndef CKPTD_COMMON_SOURCE_TORCH_STORAGE_ID_H_
#define CKPTD_COMMON_SOURCE_TORCH_STORAGE_ID_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/source/pickle/value.h"

namespace ckptd::torch {

struct StorageId {
  std::string_view symbol;  // "torch.FloatStorage"
  std::string_view key;
  uint64_t elements = 0;
  // Which part of the storage, as torch before 1.6 knew them: (key, first element, elements);
  // nullptr: all of it.
  const pickle::Value* part = nullptr;
};

// The storage named by ("storage", class, key, location, elements[, part]), or by the text that
// pickles of protocol 0 have in its place. Nullopt: it names something else.
std::optional<StorageId> StorageIdOf(const pickle::Value& persistent);

// The value of a whole number that is not negative.
std::optional<uint64_t> SizeOf(const pickle::Value& value);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_TORCH_STORAGE_ID_H_
