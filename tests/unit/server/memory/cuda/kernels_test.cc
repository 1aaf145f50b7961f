// Launches on the fake driver, which runs the kernels' host twins when a thread waits.
#include "server/memory/cuda/kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/cuda/allocation.h"
#include "server/memory/cuda/kernels/params.h"
#include "server/memory/cuda/kernels/tasks.h"
#include "tests/testing/cuda.h"

namespace ckptd {
namespace {

std::span<const std::byte> Text(const std::string& text) {
  return std::as_bytes(std::span(text.c_str(), text.size() + 1));
}

class CudaKernelsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { UseTestCuda("gpus = 2\nlazy = 1\ntwins = " CKPTD_TWINS "\n"); }

  void SetUp() override {
    device_ = TestGpu();
    // A tenth of it holds the source; the targets follow.
    auto memory = CudaAllocation::Create(device_, 2 << 20);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    const CudaScope scope(*device_);
    ASSERT_EQ(device_->driver().StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    for (size_t i = 0; i < kBytes; ++i) at(0)[i] = static_cast<unsigned char>(i * 7 + i / 256);
  }
  void TearDown() override {
    const CudaScope scope(*device_);
    if (stream_ != nullptr) device_->driver().StreamDestroy(stream_);
  }

  std::unique_ptr<CudaKernels> Load() const {
    auto loaded = CudaKernels::Load(device_, TestKernels());
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }
  // Memory of the fake is memory of this process.
  unsigned char* at(uint64_t offset) const {
    return reinterpret_cast<unsigned char*>(memory_.address() + offset);
  }
  // Every other row of 8 bytes, packed.
  std::vector<kernels::CopyTask> Rows(uint64_t target, uint64_t rows) const {
    BlockCopy copy;
    copy.from = copy.to = Dtype::kU8;
    copy.run_bytes = 8;
    copy.dims = 1;
    copy.count[0] = rows;
    copy.source_stride[0] = 16;
    copy.target_stride[0] = 8;
    copy.target = memory_.address() + target;
    copy.room = rows * 8;
    return Tasks(copy);
  }
  std::vector<kernels::CopyTask> Floats(uint64_t target, uint64_t count) const {
    BlockCopy copy;
    copy.from = Dtype::kBF16;
    copy.to = Dtype::kF32;
    copy.run_bytes = count * 2;
    copy.target = memory_.address() + target;
    copy.room = count * 4;
    return Tasks(copy);
  }
  std::vector<kernels::CopyTask> Tasks(const BlockCopy& copy) const {
    std::vector<kernels::CopyTask> tasks;
    EXPECT_TRUE(kernels::AppendTasks({memory_.address(), 0, kBytes}, copy, tasks).ok());
    return tasks;
  }
  void ExpectRows(uint64_t target, uint64_t rows) const {
    for (uint64_t i = 0; i < rows; ++i) {
      ASSERT_EQ(std::memcmp(at(target + i * 8), at(i * 16), 8), 0) << "row " << i;
    }
  }
  void ExpectFloats(uint64_t target, uint64_t count) const {
    for (uint64_t i = 0; i < count; ++i) {
      uint32_t got = 0;
      uint16_t from = 0;
      std::memcpy(&got, at(target + i * 4), sizeof got);
      std::memcpy(&from, at(i * 2), sizeof from);
      ASSERT_EQ(got, uint32_t{from} << 16) << "element " << i;
    }
  }
  bool Untouched(uint64_t target) const { return *at(target + 9) == 0; }
  void Wait() const {
    const CudaScope scope(*device_);
    // Each query runs one piece of work.
    for (int i = 0; i < 100; ++i) {
      if (device_->driver().StreamQuery(stream_) == CUDA_SUCCESS) return;
    }
    FAIL() << "the stream has not ended";
  }

  static constexpr uint64_t kBytes = 200'000;
  static constexpr uint64_t kTarget = 1 << 18;
  static constexpr uint64_t kOther = 1 << 19;
  static constexpr uint64_t kTable = 1 << 20;
  std::shared_ptr<CudaDevice> device_;
  CudaAllocation memory_;
  CUstream stream_ = nullptr;
};

TEST_F(CudaKernelsTest, PackingRunsOnTheStream) {
  const auto kernels = Load();
  for (const auto& task : Rows(kTarget, 5000)) {
    ASSERT_TRUE(kernels->Run(task, stream_).ok());
  }
  EXPECT_TRUE(Untouched(kTarget)) << "nobody has waited";
  Wait();
  ExpectRows(kTarget, 5000);
  EXPECT_EQ(*at(kTarget + 5000 * 8), 0) << "behind the end";
}

TEST_F(CudaKernelsTest, CastingRunsOnTheStream) {
  const auto kernels = Load();
  for (const auto& task : Floats(kTarget, 30'001)) {
    ASSERT_TRUE(kernels->Run(task, stream_).ok());
  }
  EXPECT_TRUE(Untouched(kTarget));
  Wait();
  ExpectFloats(kTarget, 30'001);
}

TEST_F(CudaKernelsTest, OneLaunchServesATableOfBothKinds) {
  const auto kernels = Load();
  std::vector<kernels::CopyTask> tasks = Rows(kTarget, 5000);
  for (const auto& task : Floats(kOther, 30'001)) tasks.push_back(task);
  const auto bytes = kernels::TableBytes(tasks.size());
  const auto tiles = kernels::WriteTable(tasks, {reinterpret_cast<std::byte*>(at(kTable)), bytes});
  ASSERT_TRUE(tiles.ok()) << tiles.status();
  const CudaTaskTable table = {memory_.address() + kTable, static_cast<uint32_t>(tasks.size()),
                               *tiles};
  ASSERT_TRUE(kernels->RunTable(table, stream_).ok());
  EXPECT_TRUE(Untouched(kTarget));
  Wait();
  ExpectRows(kTarget, 5000);
  ExpectFloats(kOther, 30'001);
}

TEST_F(CudaKernelsTest, NothingToDoStartsNothing) {
  const auto kernels = Load();
  EXPECT_TRUE(kernels->RunTable({memory_.address() + kTable, 0, 0}, stream_).ok());
  EXPECT_TRUE(kernels->Run(kernels::CopyTask{}, stream_).ok());
}

TEST_F(CudaKernelsTest, ATableAtAnOddAddressIsRefused) {
  const auto status = Load()->RunTable({memory_.address() + 8, 1, 1}, stream_);
  EXPECT_EQ(ReasonOf(status), reason::kInvalidRequest) << status;
}

TEST_F(CudaKernelsTest, MoreThanOneLaunchTakesIsRefused) {
  kernels::CopyTask task = {};
  task.run = task.last = uint64_t{1} << 44;
  EXPECT_EQ(ReasonOf(Load()->Run(task, stream_)), reason::kInvalidRequest);
}

TEST_F(CudaKernelsTest, ABuildWithoutKernelsSaysSo) {
  const auto loaded = CudaKernels::Load(device_, {});
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(loaded.status()), reason::kNoDevice);
  EXPECT_NE(MessageOf(loaded.status()).find(device_->info().uuid), std::string::npos);
}

TEST_F(CudaKernelsTest, AnImageThatTheDriverCannotReadIsAsGoodAsNone) {
  const auto loaded = CudaKernels::Load(device_, Text("no code"));
  EXPECT_EQ(ReasonOf(loaded.status()), reason::kNoDevice) << loaded.status();
  EXPECT_NE(MessageOf(loaded.status()).find("the driver cannot read them"), std::string::npos);
}

TEST_F(CudaKernelsTest, AMissingKernelIsNamed) {
  const auto loaded = CudaKernels::Load(device_, Text("// ckptd_pack ckptd_batch"));
  EXPECT_NE(MessageOf(loaded.status()).find("ckptd_cast"), std::string::npos) << loaded.status();
}

// The names and parameters of what nvcc made; the image itself is compressed.
TEST_F(CudaKernelsTest, TheCompiledKernelsAreThoseThatAreLaunched) {
  if (std::string(CKPTD_KERNELS_PTX).empty()) GTEST_SKIP() << "built without nvcc";
  std::stringstream ptx;
  ptx << std::ifstream(CKPTD_KERNELS_PTX).rdbuf();
  const auto loaded = CudaKernels::Load(device_, Text(ptx.str()));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  const auto param = [](const std::string& name, size_t bytes) {
    return ".b8 " + name + "_param_0[" + std::to_string(bytes) + "]";
  };
  for (const std::string& wanted : {param("ckptd_pack", sizeof(kernels::TaskParams)),
                                    param("ckptd_cast", sizeof(kernels::TaskParams)),
                                    param("ckptd_batch", sizeof(kernels::BatchParams))}) {
    EXPECT_NE(ptx.str().find(wanted), std::string::npos) << wanted;
  }
}

}  // namespace
}  // namespace ckptd
