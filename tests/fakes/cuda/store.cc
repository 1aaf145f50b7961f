#include "tests/fakes/cuda/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace ckptd::fake_cuda {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 44;

// Holds the directory's lock file while it lives.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& folder)
      : fd_(::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~DirectoryLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  const int fd_;
};

// Removes the file if no descriptor of it is open anywhere; true when it is gone.
bool Reap(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return true;
  const bool unheld = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  if (unheld) ::unlink(path.c_str());
  ::close(fd);
  return unheld;
}

// Real memory is not zeroed for a process that had it before: shows who relies on zeros.
void Fill(int fd, std::uint64_t bytes, unsigned char value) {
  void* view = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (view == MAP_FAILED) return;
  std::fill_n(static_cast<unsigned char*>(view), bytes, value);
  ::munmap(view, bytes);
}

}  // namespace

std::string MemoryName::Text() const {
  return fmt::format("{}-{}-{}-{}-{}", kind == MemoryKind::kVmm ? "vmm" : "ipc", gpu, bytes, pid,
                     number);
}

std::optional<MemoryName> MemoryName::Parse(const std::string& text) {
  MemoryName name;
  char kind[4] = {};
  int end = 0;
  if (std::sscanf(text.c_str(), "%3[a-z]-%zu-%lu-%d-%lu%n", kind, &name.gpu, &name.bytes, &name.pid,
                  &name.number, &end) != 5) {
    return std::nullopt;
  }
  name.kind = std::string(kind) == "vmm" ? MemoryKind::kVmm : MemoryKind::kLegacy;
  const std::string rest = text.substr(static_cast<std::size_t>(end));
  // What the kernel appends to names of memfds.
  const bool whole = rest.empty() || rest == " (deleted)";
  if (!whole || name.bytes == 0 || name.bytes > kMaxBytes) return std::nullopt;
  return name;
}

Memory::~Memory() { ::close(fd); }

int Store::MakeFile(MemoryName& name) {
  int fd = -1;
  do {
    // Another process can have the same pid, in another namespace: then the name is taken.
    name.number = next_number_++;
    fd = shared() ? ::open(Path(name.Text()).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                  : ::memfd_create(name.Text().c_str(), MFD_CLOEXEC);
  } while (fd < 0 && errno == EEXIST);
  if (fd < 0) return -1;
  const bool good =
      ::flock(fd, LOCK_SH | LOCK_NB) == 0 && ::ftruncate(fd, static_cast<off_t>(name.bytes)) == 0;
  if (good) return fd;
  ::close(fd);
  return -1;
}

MemoryPtr Store::Create(MemoryKind kind, std::size_t gpu, std::uint64_t bytes) {
  MemoryName name{kind, gpu, bytes, ::getpid(), 0};
  std::optional<DirectoryLock> lock;
  if (shared()) lock.emplace(config_.state_dir);
  if (bytes > kMaxBytes || UsedLocked(gpu) + bytes > config_.gpus[gpu].bytes) return nullptr;
  const int fd = MakeFile(name);
  if (fd < 0) return nullptr;
  lock.reset();
  if (config_.fill) Fill(fd, bytes, *config_.fill);
  auto memory = std::make_shared<Memory>(name, fd);
  mine_.push_back(memory);
  return memory;
}

MemoryPtr Store::Adopt(int fd) {
  std::error_code error;
  const fs::path path = fs::read_symlink(fmt::format("/proc/self/fd/{}", fd), error);
  std::string base = error ? "" : path.filename().string();
  if (base.rfind("memfd:", 0) == 0) base.erase(0, 6);
  const auto name = MemoryName::Parse(base);
  struct stat status {};
  if (!name || name->kind != MemoryKind::kVmm || name->gpu >= config_.gpus.size() ||
      ::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<std::uint64_t>(status.st_size) != name->bytes) {
    return nullptr;
  }
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0) return nullptr;
  auto memory = std::make_shared<Memory>(*name, own);
  memory->exportable = true;
  mine_.push_back(memory);
  return memory;
}

MemoryPtr Store::Open(const MemoryName& name) {
  if (!shared() || name.kind != MemoryKind::kLegacy || name.gpu >= config_.gpus.size()) {
    return nullptr;
  }
  const DirectoryLock lock(config_.state_dir);
  const std::string path = Path(name.Text());
  if (Reap(path)) return nullptr;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  if (::flock(fd, LOCK_SH | LOCK_NB) != 0) {
    ::close(fd);
    return nullptr;
  }
  return std::make_shared<Memory>(name, fd);
}

bool Store::Held(const MemoryName& name) const {
  if (!shared()) return false;
  const DirectoryLock lock(config_.state_dir);
  return !Reap(Path(name.Text()));
}

std::uint64_t Store::Used(std::size_t gpu) {
  std::optional<DirectoryLock> lock;
  if (shared()) lock.emplace(config_.state_dir);
  return UsedLocked(gpu);
}

std::uint64_t Store::UsedLocked(std::size_t gpu) {
  std::uint64_t used = 0;
  std::erase_if(mine_, [](const auto& memory) { return memory.expired(); });
  if (!shared()) {
    for (const auto& memory : mine_) {
      const MemoryPtr held = memory.lock();
      if (held && held->name.gpu == gpu) used += held->name.bytes;
    }
    return used;
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(config_.state_dir, error)) {
    const auto name = MemoryName::Parse(entry.path().filename().string());
    if (name && name->gpu == gpu && !Reap(entry.path().string())) used += name->bytes;
  }
  return used;
}

}  // namespace ckptd::fake_cuda
