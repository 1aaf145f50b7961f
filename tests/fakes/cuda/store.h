// Device memory: files that processes pass on as descriptors, and the count of
// what is used on each GPU.
#ifndef CKPTD_TESTS_FAKES_CUDA_STORE_H_
#define CKPTD_TESTS_FAKES_CUDA_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "tests/fakes/cuda/config.h"

namespace ckptd::fake_cuda {

enum class MemoryKind {
  kVmm,     // cuMemCreate: shared by descriptors
  kLegacy,  // cuMemAlloc: shared by name, within 64 bytes
};

// Who made a piece of memory, for which GPU: all of it is in the file's name.
struct MemoryName {
  MemoryKind kind = MemoryKind::kVmm;
  std::size_t gpu = 0;  // of the configuration, not of the visible ones
  std::uint64_t bytes = 0;
  int pid = 0;  // of the process that made it
  std::uint64_t number = 0;

  std::string Text() const;
  static std::optional<MemoryName> Parse(const std::string& text);
};

// A piece of physical memory; owns one descriptor of its file.
struct Memory {
  Memory(MemoryName what, int descriptor) : name(what), fd(descriptor) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const MemoryName name;
  const int fd;
  bool exportable = false;    // made with the POSIX descriptor handle type
  bool ipc_exported = false;  // its name left this process
  std::uint64_t handle = 0;   // the CUmemGenericAllocationHandle; 0: had none yet
  unsigned handle_refs = 0;   // cuMemCreate, imports and retains not yet released
};
using MemoryPtr = std::shared_ptr<Memory>;

// With a state directory each piece of memory is a named file there, and each
// open descriptor of it holds a shared flock. A lock belongs to the open file
// description: it lasts while any duplicate is open in any process, or in
// flight on a socket, and the kernel drops it on kill -9. So "is this memory
// still held?" is a try for the exclusive lock, and the files are the table.
// This imitates what the real driver counts (a descriptor alone keeps memory,
// also in processes that never called CUDA; reference, section 2.2).
// It cannot see: a mapping that somebody makes by hand from a descriptor and
// keeps after closing it, contexts and code, which take memory on real GPUs,
// and other users of the GPU.
// Without a directory memory is a memfd, only this process's own pieces count,
// and legacy handles cannot be opened elsewhere.
// Not thread-safe: used under the driver's lock. Between processes: a lock file.
class Store {
 public:
  explicit Store(const Config& config) : config_(config) {}

  // Null when the GPU has not so much left.
  MemoryPtr Create(MemoryKind kind, std::size_t gpu, std::uint64_t bytes);
  // The memory behind a descriptor from another process (duplicated, not
  // consumed); null when it is none of ours.
  MemoryPtr Adopt(int fd);
  // Legacy memory of another process; null when nobody holds it any more.
  MemoryPtr Open(const MemoryName& name);
  // Whether any process has that memory, this one included.
  bool Held(const MemoryName& name) const;
  bool shared() const { return !config_.state_dir.empty(); }
  // Bytes in use on a GPU, in all processes that share the directory.
  std::uint64_t Used(std::size_t gpu);

 private:
  std::uint64_t UsedLocked(std::size_t gpu);
  int MakeFile(MemoryName& name);
  std::string Path(const std::string& name) const { return config_.state_dir + "/" + name; }

  const Config& config_;
  std::uint64_t next_number_ = 1;
  std::vector<std::weak_ptr<Memory>> mine_;  // counted where there is no directory
};

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_FAKES_CUDA_STORE_H_
