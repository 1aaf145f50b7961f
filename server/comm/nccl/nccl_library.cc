#include "server/comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr char kSoname[] = "libnccl.so.2";
constexpr size_t kMaxWarning = 512;

std::string VersionName(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

absl::Status NoNccl(const std::string& why) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kNoNccl,
      fmt::format("opening NCCL: {}; install libnccl2 of NVIDIA's packages or the Python "
                  "package nvidia-nccl-cu13, or name the library with its path",
                  why));
}

// The NCCL library of each Python version in an environment, sorted by name.
std::vector<std::string> LibrariesIn(const std::string& environment) {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(environment) / "lib", error), end;
       !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().rfind("python", 0) != 0) continue;
    const fs::path library = entry->path() / "site-packages/nvidia/nccl/lib" / kSoname;
    std::error_code ignored;
    if (fs::exists(library, ignored)) found.push_back(library.string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

template <typename Function>
void Find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr && missing.empty()) missing = name;
}

// The file that contains a function of the library.
std::string FileOf(void* function) {
  Dl_info info{};
  const bool known = ::dladdr(function, &info) != 0 && info.dli_fname != nullptr;
  return known ? info.dli_fname : kSoname;
}

}  // namespace

std::string NcclLibrary::Resolve(void* library) {
  std::string missing;
  Find(library, "ncclGetVersion", GetVersion, missing);
  Find(library, "ncclGetUniqueId", GetUniqueId, missing);
  Find(library, "ncclGetErrorString", GetErrorString, missing);
  Find(library, "ncclGetLastError", GetLastError, missing);
  Find(library, "ncclCommInitRankConfig", CommInitRankConfig, missing);
  Find(library, "ncclCommGetAsyncError", CommGetAsyncError, missing);
  Find(library, "ncclCommFinalize", CommFinalize, missing);
  Find(library, "ncclCommDestroy", CommDestroy, missing);
  Find(library, "ncclCommAbort", CommAbort, missing);
  Find(library, "ncclGroupStart", GroupStart, missing);
  Find(library, "ncclGroupEnd", GroupEnd, missing);
  Find(library, "ncclSend", Send, missing);
  Find(library, "ncclRecv", Recv, missing);
  Find(library, "ncclBroadcast", Broadcast, missing);
  return missing;
}

// A library that cannot be used stays open, because NCCL does not support being closed.
absl::StatusOr<std::shared_ptr<const NcclLibrary>> NcclLibrary::OpenOne(const std::string& path) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return NoNccl(::dlerror());
  const std::shared_ptr<NcclLibrary> library(new NcclLibrary);
  const std::string missing = library->Resolve(handle);
  // The version is read first, because it explains what is missing.
  if (library->GetVersion == nullptr) return NoNccl(path + " has no ncclGetVersion");
  library->path_ = FileOf(reinterpret_cast<void*>(library->GetVersion));
  if (library->GetVersion(&library->version_) != ncclSuccess) {
    return NoNccl(path + " does not report its version");
  }
  if (library->version_ < kOldestVersion) {
    return NoNccl(fmt::format("{} is NCCL {}, and {} or newer is needed", library->path_,
                              library->VersionText(), VersionName(kOldestVersion)));
  }
  if (!missing.empty()) return NoNccl(fmt::format("{} has no {}", library->path_, missing));
  return library;
}

absl::StatusOr<std::shared_ptr<const NcclLibrary>> NcclLibrary::Open(const NcclSearch& search) {
  if (!search.path.empty()) return OpenOne(search.path);
  std::vector<std::string> candidates = {kSoname};
  for (const std::string& environment : search.python_environments) {
    if (environment.empty()) continue;
    for (std::string& found : LibrariesIn(environment)) candidates.push_back(std::move(found));
  }
  std::string tried;
  for (const std::string& candidate : candidates) {
    auto library = OpenOne(candidate);
    if (library.ok()) return library;
    // Drops the beginning and the advice, which are the same in each error.
    const std::string why = MessageOf(library.status()).substr(std::strlen("opening NCCL: "));
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", why.substr(0, why.find("; install")));
  }
  return NoNccl(tried);
}

std::string NcclLibrary::VersionText() const { return VersionName(version_); }

absl::StatusOr<NcclUniqueId> NcclLibrary::MakeUniqueId() const {
  ncclUniqueId made;
  CKPTD_RETURN_IF_ERROR(Check(GetUniqueId(&made), "making NCCL's unique id"));
  NcclUniqueId id;
  std::memcpy(id.data(), made.internal, id.size());
  return id;
}

absl::Status NcclLibrary::Check(ncclResult_t result, const std::string& doing) const {
  if (result == ncclSuccess) return absl::OkStatus();
  std::string text = fmt::format("{}: NCCL answers {} ({})", doing, static_cast<int>(result),
                                 GetErrorString(result));
  // This is the last warning of the process. It may be missing or about an earlier call.
  const char* const warning = GetLastError(nullptr);
  if (warning != nullptr && *warning != '\0') {
    text += fmt::format("; its last warning: {}",
                        std::string_view(warning, ::strnlen(warning, kMaxWarning)));
  }
  switch (result) {
    case ncclRemoteError:
      // The rank that reports the error is not the one that failed.
      return MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed,
                       text + "; look at the log of the other ranks and load again, or with --comm host");
    case ncclUnhandledCudaError:
      return MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed,
                       text + "; look at nvidia-smi and dmesg, and start the daemon again");
    case ncclInternalError:
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return MakeError(absl::StatusCode::kInternal, reason::kNcclFailed,
                       text + "; CKPTD_NCCL_DEBUG=WARN makes NCCL log more, --comm host does "
                              "without NCCL");
    default:
      return MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed,
                       text + "; CKPTD_NCCL_DEBUG=INFO makes NCCL log more, --comm host does "
                              "without NCCL");
  }
}

}  // namespace ckptd
