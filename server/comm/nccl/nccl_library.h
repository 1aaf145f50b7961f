// NVIDIA's NCCL, opened at run time, so that the same binary runs without it. Nothing links
// libnccl.
#ifndef CKPTD_SERVER_COMM_NCCL_NCCL_LIBRARY_H_
#define CKPTD_SERVER_COMM_NCCL_NCCL_LIBRARY_H_

#include <nccl.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

// The id that all ranks of a communicator get. Only they may have it, because it lets a process
// join.
using NcclUniqueId = std::array<std::byte, NCCL_UNIQUE_ID_BYTES>;

struct NcclSearch {
  std::string path;  // the only library to try; empty: search
  // Python environments (as $VIRTUAL_ENV). Their package nvidia-nccl-cu13 or -cu12 is used if the
  // system has no libnccl.so.2.
  std::vector<std::string> python_environments;
};

// The functions that ckptd calls, named without "nccl". Immutable once opened, so thread-safe.
// The library stays open until the process ends.
class NcclLibrary {
 public:
  // The oldest version that has all functions we use.
  static constexpr int kOldestVersion = NCCL_VERSION(2, 19, 0);

  // NCCL reads its environment at its first use, so clean that before (environment.h). Errors:
  // FailedPrecondition NO_NCCL names every library that was tried and what it lacks.
  static absl::StatusOr<std::shared_ptr<const NcclLibrary>> Open(const NcclSearch& search);

  // As ncclGetVersion: 23007 for 2.30.7. All ranks of a communicator need the same.
  int version() const { return version_; }
  std::string VersionText() const;
  const std::string& path() const { return path_; }  // the file that was opened, for people

  // A new id, for one communicator. This process serves it, so it must live until all ranks have
  // joined. Errors: those of Check.
  absl::StatusOr<NcclUniqueId> MakeUniqueId() const;
  // OK for ncclSuccess, otherwise an error "doing: NCCL's sentence (its last warning)".
  // Unavailable RANK_LOST for a remote error, Unavailable DEVICE_FAILED for CUDA's, Internal
  // NCCL_FAILED for a mistake of ours, otherwise Unavailable NCCL_FAILED.
  absl::Status Check(ncclResult_t result, const std::string& doing) const;

  decltype(&ncclGetVersion) GetVersion = nullptr;
  decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclGetLastError) GetLastError = nullptr;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&ncclCommFinalize) CommFinalize = nullptr;
  decltype(&ncclCommDestroy) CommDestroy = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;
  decltype(&ncclBroadcast) Broadcast = nullptr;

 private:
  NcclLibrary() = default;
  static absl::StatusOr<std::shared_ptr<const NcclLibrary>> OpenOne(const std::string& path);
  // Finds all functions. Returns the name of one that the library lacks; empty: none.
  std::string Resolve(void* library);

  int version_ = 0;
  std::string path_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_NCCL_NCCL_LIBRARY_H_
