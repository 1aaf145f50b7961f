// kernel_bench [GPU-UUID] [MIB]: checks the kernels against their host twins on a real
// GPU, then measures each beside a copy from device to device that moves as many bytes, or, of
// those that read pinned memory, beside a copy from there. See README.md.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/cuda/allocation.h"
#include "server/memory/cuda/kernels.h"
#include "server/memory/cuda/kernels/image.h"
#include "server/memory/cuda/kernels/params.h"
#include "server/memory/cuda/kernels/tasks.h"

extern "C" void ckptd_batch_twin(const void* params, unsigned grid, unsigned block);

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kRounds = 5;
constexpr int kInARow = 10;  // of a round: what starting and waiting takes says nothing of memory
constexpr uint64_t kSector = 32;  // memory of GPUs is read and written in no less
constexpr uint64_t kTableBytes = 2 << 20;

struct Case {
  std::string name;
  std::vector<BlockCopy> copies;  // targets count from 0
  uint64_t skew = 0;              // of the source
  bool pinned = false;            // the source is memory of the host, as in a load
};

BlockCopy Strided(Dtype from, Dtype to, uint64_t begin, uint64_t run, uint64_t rows,
                  uint64_t source_stride, uint64_t target, uint64_t target_stride) {
  BlockCopy copy;
  copy.from = from;
  copy.to = to;
  copy.begin = begin;
  copy.run_bytes = run;
  copy.dims = 1;
  copy.count[0] = rows;
  copy.source_stride[0] = source_stride;
  copy.target_stride[0] = target_stride;
  copy.target = target;
  copy.room = ~uint64_t{0} - target;
  return copy;
}

// Every second row of `row` bytes, to back to back.
Case Rows(uint64_t bytes, uint64_t row, uint64_t skew = 0) {
  const std::string name = "rows of " + std::to_string(row) + " bytes";
  return {skew == 0 ? name : name + ", askew by " + std::to_string(skew),
          {Strided(Dtype::kU8, Dtype::kU8, 0, row, bytes / row / 2, row * 2, 0, row)},
          skew};
}

Case Pinned(Case one) {
  one.name += ", pinned";
  one.pinned = true;
  return one;
}

Case CastRun(uint64_t bytes, const char* name, Dtype from, Dtype to, uint64_t skew = 0) {
  // At most twice as many bytes come out; four times from F16 to F64.
  const uint64_t run = bytes / 4;
  return {name, {Strided(from, to, 0, run, 1, run, 0, run * 4)}, skew};
}

// Slices of a few tensors, as ranks of a group with two mesh dimensions take them.
Case Batch(uint64_t bytes) {
  Case all = {"batch of 256, rows and casts", {}};
  const uint64_t part = bytes / 256 / 4096 * 4096;
  for (uint64_t i = 0; i < 256 && part > 0; ++i) {
    const bool casts = i % 2 == 1;
    all.copies.push_back(Strided(casts ? Dtype::kF32 : Dtype::kBF16, Dtype::kBF16, i * part, 1024,
                                 part / 2048, 2048, i * part, casts ? 512 : 1024));
  }
  return all;
}

std::vector<Case> Cases(uint64_t bytes) {
  return {Rows(bytes, 4096),
          Rows(bytes, 256),
          Rows(bytes, 16),
          Rows(bytes, 4096, 8),
          Rows(bytes, 4096, 2),
          Rows(bytes, 6),
          CastRun(bytes, "F32 to BF16", Dtype::kF32, Dtype::kBF16),
          CastRun(bytes, "F32 to BF16, askew by 8", Dtype::kF32, Dtype::kBF16, 8),
          CastRun(bytes, "F32 to F16", Dtype::kF32, Dtype::kF16),
          CastRun(bytes, "BF16 to F32", Dtype::kBF16, Dtype::kF32),
          CastRun(bytes, "F64 to F32", Dtype::kF64, Dtype::kF32),
          CastRun(bytes, "F16 to F64", Dtype::kF16, Dtype::kF64),
          Batch(bytes),
          Pinned(Rows(bytes, 2048)),
          Pinned(Rows(bytes, 2048, 8)),
          Pinned(Rows(bytes, 2048, 2))};
}

class Bench {
 public:
  Bench(std::shared_ptr<CudaDevice> device, uint64_t bytes)
      : device_(std::move(device)), bytes_(bytes) {}

  absl::Status Open() {
    CKPTD_ASSIGN_OR_RETURN(kernels_, CudaKernels::Load(device_, kernels::KernelImage()));
    CKPTD_ASSIGN_OR_RETURN(source_, CudaAllocation::Create(device_, bytes_ + 64));
    CKPTD_ASSIGN_OR_RETURN(target_, CudaAllocation::Create(device_, bytes_));
    CKPTD_ASSIGN_OR_RETURN(table_, CudaAllocation::Create(device_, kTableBytes));
    const CudaScope scope(*device_);
    CKPTD_RETURN_IF_ERROR(device_->Check(
        device_->driver().StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "making a stream"));
    host_source_.resize(bytes_ + 64);
    uint64_t state = 1;
    for (auto& byte : host_source_) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::byte>(state >> 56);
    }
    CKPTD_RETURN_IF_ERROR(device_->Check(
        device_->driver().MemHostAlloc(&pinned_, host_source_.size(), 0), "pinning memory"));
    std::memcpy(pinned_, host_source_.data(), host_source_.size());
    return Upload(source_.address(), host_source_.data(), host_source_.size());
  }

  // False when kernel and twin differ.
  absl::StatusOr<bool> Check(const Case& one) {
    CKPTD_RETURN_IF_ERROR(Clear());
    CKPTD_ASSIGN_OR_RETURN(const CudaTaskTable table,
                           Prepare(one, SourceOf(one), target_.address()));
    CKPTD_RETURN_IF_ERROR(kernels_->RunTable(table, stream_));
    std::vector<std::byte> got(bytes_);
    {
      const CudaScope scope(*device_);
      CKPTD_RETURN_IF_ERROR(device_->Check(
          device_->driver().MemcpyDtoHAsync(got.data(), target_.address(), bytes_, stream_),
          "copying back"));
    }
    CKPTD_RETURN_IF_ERROR(Wait());
    std::vector<std::byte> wanted(bytes_);
    std::vector<std::byte> memory;
    CKPTD_ASSIGN_OR_RETURN(const uint32_t tiles,
                           Table(one, reinterpret_cast<uint64_t>(host_source_.data()),
                                 reinterpret_cast<uint64_t>(wanted.data()), memory));
    const kernels::BatchParams params = {
        kernels::TableAt(reinterpret_cast<uint64_t>(memory.data()), tasks_)};
    ckptd_batch_twin(&params, tiles, kernels::kThreads);
    return std::memcmp(got.data(), wanted.data(), bytes_) == 0;
  }

  // Seconds of one round, the best of some.
  absl::StatusOr<double> Measure(const Case& one) {
    CKPTD_ASSIGN_OR_RETURN(const CudaTaskTable table,
                           Prepare(one, SourceOf(one), target_.address()));
    return Best([&] { return kernels_->RunTable(table, stream_); });
  }
  // The copy that moves so many bytes, reads and writes together.
  absl::StatusOr<double> MeasurePlainCopy(uint64_t moved) {
    const uint64_t bytes = std::min(moved / 2, bytes_);
    CKPTD_ASSIGN_OR_RETURN(const double seconds, Best([&] {
      return device_->Check(
          device_->driver().MemcpyDtoDAsync(target_.address(), source_.address(), bytes, stream_),
          "copying");
    }));
    return seconds * static_cast<double>(moved) / static_cast<double>(2 * bytes);
  }
  // The same over the link, which only what is read crosses.
  absl::StatusOr<double> MeasureUpload(uint64_t moved) {
    return Best([&] {
      return device_->Check(
          device_->driver().MemcpyHtoDAsync(target_.address(), pinned_, moved / 2, stream_),
          "copying in");
    });
  }
  // Bytes that a case makes memory read and write: whole sectors.
  static uint64_t Moved(const Case& one) {
    uint64_t moved = 0;
    for (const BlockCopy& copy : one.copies) {
      const uint64_t run = copy.source_stride[0] - copy.run_bytes < kSector
                               ? copy.source_stride[0]  // nothing is left out
                               : copy.run_bytes;
      const uint64_t elements = copy.run_bytes * copy.count[0] / (BitsOf(copy.from) / 8);
      moved += run * copy.count[0] + elements * (BitsOf(copy.to) / 8);
    }
    return moved;
  }

 private:
  CUdeviceptr SourceOf(const Case& one) const {
    return one.pinned ? reinterpret_cast<CUdeviceptr>(pinned_) : source_.address();
  }
  absl::StatusOr<double> Best(const std::function<absl::Status()>& start) {
    double best = 1e9;
    const CudaScope scope(*device_);
    for (int i = 0; i < kRounds; ++i) {
      const auto begin = Clock::now();
      for (int n = 0; n < kInARow; ++n) CKPTD_RETURN_IF_ERROR(start());
      CKPTD_RETURN_IF_ERROR(Wait());
      const std::chrono::duration<double> took = Clock::now() - begin;
      best = std::min(best, took.count() / kInARow);
    }
    return best;
  }

  absl::StatusOr<uint32_t> Table(const Case& one, uint64_t source, uint64_t target,
                                 std::vector<std::byte>& out) {
    std::vector<kernels::CopyTask> tasks;
    for (BlockCopy copy : one.copies) {
      copy.target += target;
      copy.room = target + bytes_ - copy.target;
      CKPTD_RETURN_IF_ERROR(kernels::AppendTasks({source + one.skew, 0, bytes_}, copy, tasks));
    }
    tasks_ = static_cast<uint32_t>(tasks.size());
    out.resize(kernels::TableBytes(tasks.size()));
    return kernels::WriteTable(tasks, out);
  }
  absl::StatusOr<CudaTaskTable> Prepare(const Case& one, CUdeviceptr source, CUdeviceptr target) {
    std::vector<std::byte> memory;
    CKPTD_ASSIGN_OR_RETURN(const uint32_t tiles, Table(one, source, target, memory));
    CKPTD_RETURN_IF_ERROR(Upload(table_.address(), memory.data(), memory.size()));
    return CudaTaskTable{table_.address(), tasks_, tiles};
  }
  absl::Status Upload(CUdeviceptr to, const std::byte* from, size_t bytes) {
    const CudaScope scope(*device_);
    CKPTD_RETURN_IF_ERROR(
        device_->Check(device_->driver().MemcpyHtoDAsync(to, from, bytes, stream_), "copying in"));
    return Wait();
  }
  absl::Status Clear() {
    const CudaScope scope(*device_);
    return device_->Check(device_->driver().MemsetD8Async(target_.address(), 0, bytes_, stream_),
                          "clearing");
  }
  absl::Status Wait() {
    const CudaScope scope(*device_);
    const auto deadline = Clock::now() + kPatience;
    while (true) {
      const CUresult result = device_->driver().StreamQuery(stream_);
      if (result != CUDA_ERROR_NOT_READY) return device_->Check(result, "waiting");
      if (Clock::now() > deadline) return absl::DeadlineExceededError("the GPU stands still");
    }
  }

  const std::shared_ptr<CudaDevice> device_;
  const uint64_t bytes_;
  std::unique_ptr<CudaKernels> kernels_;
  CudaAllocation source_;
  CudaAllocation target_;
  CudaAllocation table_;
  CUstream stream_ = nullptr;  // of a process that ends soon, as is the next
  void* pinned_ = nullptr;     // the same as the source
  std::vector<std::byte> host_source_;
  uint32_t tasks_ = 0;
};

void Print(const std::string& name, uint64_t moved, double seconds, double copy) {
  std::printf("%-32s %10.1f GB/s moved %6.2f   best %.3f ms\n", name.c_str(),
              static_cast<double>(moved) / seconds * 1e-9, copy / seconds, seconds * 1e3);
}

absl::StatusOr<bool> RunAll(const std::string& uuid, uint64_t bytes) {
  CKPTD_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  CKPTD_ASSIGN_OR_RETURN(const auto gpus, ListGpus(*driver));
  GpuInfo gpu = gpus.front();
  if (!uuid.empty()) {
    CKPTD_ASSIGN_OR_RETURN(gpu, FindGpu(*driver, uuid));
  }
  CKPTD_ASSIGN_OR_RETURN(auto device, CudaDevice::Open(*driver, gpu));
  std::printf("%s %s, %llu MiB\n", gpu.uuid.c_str(), gpu.name.c_str(),
              static_cast<unsigned long long>(bytes >> 20));
  Bench bench(std::move(device), bytes);
  CKPTD_RETURN_IF_ERROR(bench.Open());
  bool same = true;
  const auto cases = Cases(bytes);
  for (const Case& one : cases) {
    CKPTD_ASSIGN_OR_RETURN(const bool right, bench.Check(one));
    if (!right) std::printf("%s: the GPU and the twin on the host differ\n", one.name.c_str());
    same = same && right;
  }
  CKPTD_ASSIGN_OR_RETURN(const double plain, bench.MeasurePlainCopy(2 * bytes));
  Print("plain copy", 2 * bytes, plain, plain);
  for (const Case& one : cases) {
    const uint64_t moved = Bench::Moved(one);
    CKPTD_ASSIGN_OR_RETURN(const double copy, one.pinned ? bench.MeasureUpload(moved)
                                                         : bench.MeasurePlainCopy(moved));
    CKPTD_ASSIGN_OR_RETURN(const double seconds, bench.Measure(one));
    Print(one.name, moved, seconds, copy);
  }
  return same;
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  const bool named = first.find('-') != std::string::npos;
  const char* const size = named ? (argc > 2 ? argv[2] : nullptr) : (argc > 1 ? argv[1] : nullptr);
  const unsigned long mib = size == nullptr ? 1024 : std::strtoul(size, nullptr, 10);
  if (mib == 0 || mib > 65536 || argc > 3) {
    std::fputs("usage: kernel_bench [GPU-UUID] [MIB]\n", stderr);
    return 2;
  }
  const auto same = ckptd::RunAll(named ? first : "", uint64_t{mib} << 20);
  if (!same.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", ckptd::MessageOf(same.status()).c_str());
    return 2;
  }
  return *same ? 0 : 1;
}
