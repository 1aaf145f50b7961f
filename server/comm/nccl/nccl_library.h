// NVIDIA's NCCL, opened at run time: the same binary starts where there is none.
// Nothing links libnccl.
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

// What all ranks of a communicator are given, and only they: who has it can join.
using NcclUniqueId = std::array<std::byte, NCCL_UNIQUE_ID_BYTES>;

struct NcclSearch {
  std::string path;  // only this library; empty: looked for
  // Python environments (as $VIRTUAL_ENV) whose package nvidia-nccl-cu13 or -cu12 is taken
  // where the system has no libnccl.so.2.
  std::vector<std::string> python_environments;
};

// The functions that ckptd calls, by their names without "nccl". Immutable once opened;
// the library stays open until the process ends.
class NcclLibrary {
 public:
  // The oldest that has all that is used.
  static constexpr int kOldestVersion = NCCL_VERSION(2, 19, 0);

  // NCCL reads its environment when it is first used: clean that before (environment.h).
  // Errors: FailedPrecondition NO_NCCL names every library that was tried and what each
  // lacks.
  static absl::StatusOr<std::shared_ptr<const NcclLibrary>> Open(const NcclSearch& search);

  // As ncclGetVersion: 23007 for 2.30.7. All ranks of a communicator need the same.
  int version() const { return version_; }
  std::string VersionText() const;
  const std::string& path() const { return path_; }  // what was opened, for people

  // A fresh id. This process then serves it: it must live until all ranks have joined.
  // One id makes one communicator. Errors: as Check.
  absl::StatusOr<NcclUniqueId> MakeUniqueId() const;
  // OK for ncclSuccess; else the error for what NCCL answered, as "doing: its sentence (its
  // last warning)": Unavailable RANK_LOST for a remote error, Unavailable DEVICE_FAILED for
  // CUDA's, Internal NCCL_FAILED for a mistake of ours, else Unavailable NCCL_FAILED.
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
  // The name of a function that the library lacks; empty: none.
  std::string Resolve(void* library);

  int version_ = 0;
  std::string path_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_NCCL_NCCL_LIBRARY_H_
