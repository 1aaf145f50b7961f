// Which library is found, and what is refused. Each body runs in a process of its own, because
// libraries and the fakes' configurations are read once.
#include <gmock/gmock.h>

#include <filesystem>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/comm/nccl/nccl_library.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/comm/nccl/group.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kRealEnvironment[] = CKPTD_NCCL_VENV;

TEST(NcclLibrary, AnExplicitPathIsTheOnlyOne) {
  NcclWorld().Run([] {
    const auto library = NcclLibrary::Open({CKPTD_FAKE_NCCL_LIBRARY, {}});
    ASSERT_TRUE(library.ok()) << library.status();
    EXPECT_EQ((*library)->version(), NCCL_VERSION_CODE);
    EXPECT_THAT((*library)->path(), HasSubstr("fakes/libnccl.so.2"));
    const absl::Status missing = NcclLibrary::Open({"/nowhere/libnccl.so.2", {}}).status();
    EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(missing), reason::kNoNccl);
    EXPECT_THAT(MessageOf(missing),
                AllOf(HasSubstr("/nowhere/libnccl.so.2"), HasSubstr("install")));
  });
}

TEST(NcclLibrary, AnOldOneIsRefusedWithItsVersion) {
  NcclWorld("version = 21805").Run([] {
    const absl::Status old = NcclLibrary::Open({CKPTD_FAKE_NCCL_LIBRARY, {}}).status();
    EXPECT_EQ(ReasonOf(old), reason::kNoNccl);
    EXPECT_THAT(MessageOf(old), AllOf(HasSubstr("2.18.5"), HasSubstr("2.19.0 or newer")));
  });
}

TEST(NcclLibrary, ALibraryThatIsNotNcclIsNamed) {
  NcclWorld().Run([] {
    const absl::Status other = NcclLibrary::Open({CKPTD_FAKE_CUDA_LIBRARY, {}}).status();
    EXPECT_EQ(ReasonOf(other), reason::kNoNccl);
    EXPECT_THAT(MessageOf(other), HasSubstr("has no ncclGetVersion"));
  });
}

TEST(NcclLibrary, APythonEnvironmentIsSearchedAfterTheSystem) {
  NcclWorld world;
  world.Run([&] {
    namespace fs = std::filesystem;
    const fs::path environment = fs::path(world.folder()) / "venv";
    const fs::path library = environment / "lib/python3.11/site-packages/nvidia/nccl/lib";
    fs::create_directories(library);
    fs::create_symlink(CKPTD_FAKE_NCCL_LIBRARY, library / "libnccl.so.2");
    const auto found = NcclLibrary::Open({"", {"", "/nowhere", environment.string()}});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_GE((*found)->version(), NcclLibrary::kOldestVersion);
  });
}

TEST(NcclLibrary, WhereThereIsNoneEverythingTriedIsNamed) {
  NcclWorld world;
  world.Run([&] {
    namespace fs = std::filesystem;
    const fs::path library =
        fs::path(world.folder()) / "venv/lib/python3.11/site-packages/nvidia/nccl/lib";
    fs::create_directories(library);
    std::ofstream(library / "libnccl.so.2") << "no library";
    const absl::Status none = NcclLibrary::Open({"", {world.folder() + "/venv"}}).status();
    if (none.ok()) GTEST_SKIP() << "this system has an NCCL of its own";
    EXPECT_EQ(ReasonOf(none), reason::kNoNccl);
    EXPECT_THAT(MessageOf(none), AllOf(HasSubstr("libnccl.so.2: cannot open shared object file"),
                                       HasSubstr(library.string())));
  });
}

TEST(NcclLibrary, ItsErrorsSayWhatNcclSaid) {
  NcclWorld("fault = ncclGetUniqueId error=2").Run([] {
    const auto library = NcclLibrary::Open({CKPTD_FAKE_NCCL_LIBRARY, {}}).value();
    const absl::Status status = library->MakeUniqueId().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(status), reason::kNcclFailed);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("making NCCL's unique id"), HasSubstr("unhandled system error"),
                      HasSubstr("scripted")));
    EXPECT_THAT(library->Check(ncclRemoteError, "x"),
                FailsWith(absl::StatusCode::kUnavailable, reason::kNcclFailed));
    EXPECT_EQ(ReasonOf(library->Check(ncclUnhandledCudaError, "x")), reason::kDeviceFailed);
    EXPECT_EQ(library->Check(ncclInvalidUsage, "x").code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(library->Check(ncclSuccess, "x").ok());
  });
}

// NVIDIA's own library, on a machine without its driver.
TEST(NcclLibrary, TheRealOneOpensAndRefusesCleanlyWithoutADriver) {
  if (std::system("ls " CKPTD_NCCL_VENV "/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"
                  " > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "the wheel nvidia-nccl-cu13 is not installed in " << kRealEnvironment;
  }
  NcclWorld().Run([] {
    ApplyNcclEnvironment(CleanNcclEnvironment(environ));
    const auto library = NcclLibrary::Open({"", {kRealEnvironment}});
    ASSERT_TRUE(library.ok()) << library.status();
    EXPECT_GE((*library)->version(), NcclLibrary::kOldestVersion);
    const auto id = (*library)->MakeUniqueId();
    ASSERT_TRUE(id.ok()) << id.status();
    ncclUniqueId raw;
    std::memcpy(raw.internal, id->data(), id->size());
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (CudaDriver::Present()) GTEST_SKIP() << "this machine has a driver";
    const ncclResult_t result = (*library)->CommInitRankConfig(&comm, 2, raw, 0, &config);
    const absl::Status status = (*library)->Check(result, "joining");
    EXPECT_EQ(ReasonOf(status), reason::kDeviceFailed) << status;
  });
}

}  // namespace
}  // namespace ckptd
