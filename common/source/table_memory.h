// Memory for tables of tensors. A header of some megabytes becomes tables of gigabytes, which no
// budget of shards counts. So their size is estimated from the bytes of the header before these are
// read, and the process may refuse.
#ifndef CKPTD_COMMON_SOURCE_TABLE_MEMORY_H_
#define CKPTD_COMMON_SOURCE_TABLE_MEMORY_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/source/storage.h"

namespace ckptd {

// Bytes of memory that a load needs at most for each byte of a header: the header itself, the tables
// of the source and of the plan, and the messages that carry them to other ranks.
inline constexpr uint64_t kTableBytesPerHeaderByte = 42;

// Whether this process may take so many bytes more for tables. Thread-safe. Errors: ResourceExhausted
// NO_MEMORY.
using AdmitTables = std::function<absl::Status(uint64_t bytes)>;

// From now on `admit` is asked; without it everything is admitted. Called once, before the first
// source is opened.
void SetAdmitTables(AdmitTables admit);

// The same storage, whose objects ask before they read much at once. For reading headers, where what
// is read becomes tables: each read counts on top of the ones before. `storage` itself if nobody is
// to be asked.
std::shared_ptr<const Storage> CountTables(std::shared_ptr<const Storage> storage);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_TABLE_MEMORY_H_
