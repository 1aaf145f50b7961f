#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/transfer/slab_map.h"
#include "server/transfer/slab_writer.h"
#include "server/transfer/stream_copy.h"
#include "common/base/at_once.h"
#include "server/transfer/threads.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

// Bytes that a thread copies at a time: one piece of the staging memory, or of the cache.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

absl::Status CopyPiece(const SlabMap& from, const SlabMap& to, SlabWriter& writer,
                       uint64_t offset, uint64_t bytes) {
  if (from.staged() != nullptr && to.staged() == nullptr) {
    absl::Status status;
    to.ForEach(offset, bytes, [&](std::byte* out, size_t n) {
      if (status.ok()) status = from.staged()->Read(offset, {out, n});
      offset += n;
    });
    return status;
  }
  std::vector<std::byte> scratch;
  CKPTD_ASSIGN_OR_RETURN(const std::span<const std::byte> read,
                         from.Read(offset, static_cast<size_t>(bytes), scratch));
  const std::byte* next = read.data();
  writer.ForEach(0, offset, bytes, [&next](std::byte* out, size_t n) {
    StreamCopy(out, next, n);
    next += n;
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status CopySlab(const SlabView& from, const SlabView& to, uint64_t bytes,
                      unsigned threads) {
  const SlabMap source(from);
  const SlabMap target(to);
  std::atomic<uint64_t> next = 0;
  Mutex mutex;
  absl::Status first;
  const auto copy = [&]() -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(SlabWriter writer, SlabWriter::Open({&target, 1}));
    for (uint64_t at = next.fetch_add(kPieceBytes); at < bytes; at = next.fetch_add(kPieceBytes)) {
      CKPTD_RETURN_IF_ERROR(
          CopyPiece(source, target, writer, at, std::min(kPieceBytes, bytes - at)));
    }
    StreamFence();
    return writer.Finish();
  };
  const auto pieces = static_cast<unsigned>(
      std::min<uint64_t>((bytes + kPieceBytes - 1) / kPieceBytes, UINT32_MAX));
  const unsigned wanted = threads == 0 ? DefaultThreads() : threads;
  AtOnce(std::min(wanted, pieces), pieces, [&](size_t) {
    const absl::Status status = copy();
    if (status.ok()) return;
    next = bytes;  // makes the other threads stop, too
    MutexLock lock(mutex);
    if (first.ok()) first = status;
  });
  return first;
}

}  // namespace ckptd
