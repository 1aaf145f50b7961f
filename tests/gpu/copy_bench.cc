// copy_bench MODE FILE...: what this machine can do at best with the bytes of files, without
// any loader; the floor that loads are compared with. See README.md.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "common/base/status.h"
#include "common/cuda/allocation.h"
#include "common/cuda/stream.h"

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr uint64_t kBlock = uint64_t{4} << 20;
constexpr uint64_t kAlignment = 4096;
constexpr size_t kSlotsPerThread = 4;
constexpr int kThreads[] = {1, 2, 4, 8, 16};
constexpr uint64_t kMostBytes = uint64_t{256} << 30;

struct Mode {
  const char* name;
  bool reads;
  bool direct;  // past the page cache
  bool copies;  // to the GPU
};
constexpr Mode kModes[] = {
    {"link", false, false, true},    // pinned memory to the GPU
    {"warm", true, false, true},     // page cache to pinned memory to the GPU
    {"direct", true, true, false},   // storage to memory, and no GPU
};

struct File {
  std::string path;
  UniqueFd fd;
};
struct Block {
  const File* file;
  uint64_t offset;  // in its file
  uint64_t bytes;
  uint64_t target;  // in the GPU's memory
};

absl::StatusOr<std::vector<Block>> Cut(const std::vector<std::string>& paths, bool direct,
                                       std::vector<std::unique_ptr<File>>& files) {
  std::vector<Block> blocks;
  uint64_t target = 0;
  for (const std::string& path : paths) {
    CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, OpenForReading(path));
    struct stat about = {};
    if (fstat(fd.get(), &about) != 0) return ErrnoStatus(errno, "asking for the size of " + path);
    if (direct) {
      // Else they would come from memory, and not from storage.
      posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
      fd = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
      if (!fd.valid()) return ErrnoStatus(errno, "opening " + path + " past the page cache");
    }
    files.push_back(std::make_unique<File>(File{path, std::move(fd)}));
    const auto size = static_cast<uint64_t>(about.st_size);
    for (uint64_t at = 0; at < size; at += kBlock) {
      const uint64_t bytes = std::min(kBlock, size - at);
      blocks.push_back({files.back().get(), at, bytes, target});
      target += bytes;
    }
    if (target > kMostBytes) return absl::InvalidArgumentError("the files are too large");
  }
  if (blocks.empty()) return absl::InvalidArgumentError("the files are empty");
  return blocks;
}

// The last block of a file is shorter than what is asked for past the page cache.
absl::Status ReadDirect(const Block& block, std::byte* into) {
  const uint64_t whole = (block.bytes + kAlignment - 1) / kAlignment * kAlignment;
  const ssize_t got =
      pread(block.file->fd.get(), into, whole, static_cast<off_t>(block.offset));
  if (got < 0) return ErrnoStatus(errno, "reading " + block.file->path);
  if (static_cast<uint64_t>(got) < block.bytes) {
    return absl::DataLossError(block.file->path + " ends early, or was read in part");
  }
  return absl::OkStatus();
}

// Memory for all slots: pinned where it is copied to a GPU, else in huge pages if there are any.
class Slots {
 public:
  static absl::StatusOr<std::unique_ptr<Slots>> Make(std::shared_ptr<CudaDevice> device,
                                                     size_t count) {
    auto slots = std::unique_ptr<Slots>(new Slots(std::move(device)));
    const size_t bytes = count * kBlock;
    void* memory = nullptr;
    if (slots->device_) {
      const CudaScope scope(*slots->device_);
      CKPTD_RETURN_IF_ERROR(slots->device_->Check(
          slots->device_->driver().MemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE),
          "pinning memory"));
    } else {
      memory = std::aligned_alloc(size_t{2} << 20, bytes);
      if (memory == nullptr) return absl::ResourceExhaustedError("no memory for blocks");
      madvise(memory, bytes, MADV_HUGEPAGE);  // storage fills it in fewer requests
    }
    slots->memory_ = static_cast<std::byte*>(memory);
    std::memset(memory, 1, bytes);
    return slots;
  }
  ~Slots() {
    if (memory_ == nullptr) return;
    if (device_ == nullptr) {
      std::free(memory_);
      return;
    }
    const CudaScope scope(*device_);
    device_->driver().MemFreeHost(memory_);
  }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  std::byte* at(size_t index) const { return memory_ + index * kBlock; }

 private:
  explicit Slots(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  const std::shared_ptr<CudaDevice> device_;
  std::byte* memory_ = nullptr;
};

// One pass over all blocks.
class Pass {
 public:
  Pass(const Mode& mode, const std::vector<Block>& blocks, const Slots& slots,
       const CudaAllocation& target)
      : mode_(mode), blocks_(blocks), slots_(slots), target_(target) {}

  // Seconds it takes that many threads.
  absl::StatusOr<double> Run(int threads) {
    const auto begin = Clock::now();
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) all.emplace_back([this, i] { Note(Work(i)); });
    for (std::thread& thread : all) thread.join();
    const MutexLock lock(mutex_);
    CKPTD_RETURN_IF_ERROR(error_);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  absl::Status Work(int thread) {
    std::vector<CudaStream> streams;  // one per slot
    for (size_t i = 0; mode_.copies && i < kSlotsPerThread; ++i) {
      CKPTD_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Make(target_.device()));
      streams.push_back(std::move(stream));
    }
    const size_t first = static_cast<size_t>(thread) * kSlotsPerThread;
    for (size_t turn = 0;; ++turn) {
      const size_t index = next_.fetch_add(1);
      if (index >= blocks_.size() || failed_.load()) break;
      const size_t slot = turn % kSlotsPerThread;
      if (mode_.copies) CKPTD_RETURN_IF_ERROR(streams[slot].Wait(kPatience));
      std::byte* const memory = slots_.at(first + slot);
      if (mode_.reads) CKPTD_RETURN_IF_ERROR(Read(blocks_[index], memory));
      if (mode_.copies) CKPTD_RETURN_IF_ERROR(Copy(blocks_[index], memory, streams[slot]));
    }
    for (const CudaStream& stream : streams) CKPTD_RETURN_IF_ERROR(stream.Wait(kPatience));
    return absl::OkStatus();
  }
  absl::Status Read(const Block& block, std::byte* into) const {
    if (mode_.direct) return ReadDirect(block, into);
    return PreadFull(block.file->fd.get(), block.offset, {into, block.bytes}, block.file->path);
  }
  absl::Status Copy(const Block& block, const std::byte* from, const CudaStream& stream) const {
    const CudaDevice& device = *target_.device();
    const CudaScope scope(device);
    return device.Check(device.driver().MemcpyHtoDAsync(target_.address() + block.target, from,
                                                        block.bytes, stream.get()),
                        "copying in");
  }
  void Note(const absl::Status& status) {
    if (status.ok()) return;
    failed_.store(true);
    const MutexLock lock(mutex_);
    if (error_.ok()) error_ = status;
  }

  const Mode& mode_;
  const std::vector<Block>& blocks_;
  const Slots& slots_;
  const CudaAllocation& target_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::shared_ptr<CudaDevice>> OpenGpu(const std::string& uuid) {
  CKPTD_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  CKPTD_ASSIGN_OR_RETURN(const auto gpus, ListGpus(*driver));
  GpuInfo gpu = gpus.front();
  if (!uuid.empty()) {
    CKPTD_ASSIGN_OR_RETURN(gpu, FindGpu(*driver, uuid));
  }
  return CudaDevice::Open(*driver, gpu);
}

absl::Status Measure(const Mode& mode, const std::string& uuid,
                     const std::vector<std::string>& paths) {
  std::vector<std::unique_ptr<File>> files;
  CKPTD_ASSIGN_OR_RETURN(const std::vector<Block> blocks, Cut(paths, mode.direct, files));
  const uint64_t bytes = blocks.back().target + blocks.back().bytes;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int most = std::min(cores, *std::max_element(std::begin(kThreads), std::end(kThreads)));
  std::shared_ptr<CudaDevice> device;
  CudaAllocation target;
  if (mode.copies) {
    CKPTD_ASSIGN_OR_RETURN(device, OpenGpu(uuid));
    CKPTD_ASSIGN_OR_RETURN(target, CudaAllocation::Create(device, bytes));
  }
  CKPTD_ASSIGN_OR_RETURN(const auto slots,
                         Slots::Make(device, static_cast<size_t>(most) * kSlotsPerThread));
  if (mode.copies) {  // the first pass over memory and files is slower
    CKPTD_RETURN_IF_ERROR(Pass(mode, blocks, *slots, target).Run(most).status());
  }
  for (const int threads : kThreads) {
    if (threads > most) continue;
    CKPTD_ASSIGN_OR_RETURN(const double seconds, Pass(mode, blocks, *slots, target).Run(threads));
    std::printf("%s %2d threads %.6f s %8.2f GB/s\n", mode.name, threads, seconds,
                static_cast<double>(bytes) / seconds * 1e-9);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) {
  std::string uuid;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--gpu") == 0 && i + 1 < argc) {
      uuid = argv[++i];
    } else {
      words.emplace_back(argv[i]);
    }
  }
  for (const ckptd::Mode& mode : ckptd::kModes) {
    if (words.size() < 2 || words[0] != mode.name) continue;
    const absl::Status status = ckptd::Measure(mode, uuid, {words.begin() + 1, words.end()});
    if (status.ok()) return 0;
    std::fprintf(stderr, "copy_bench: %s\n", ckptd::MessageOf(status).c_str());
    return 1;
  }
  std::fputs("usage: copy_bench [--gpu UUID] link|warm|direct FILE...\n", stderr);
  return 2;
}
