// Takes files out of the page cache, so that a test reads from storage.
#ifndef CKPTD_TESTS_TESTING_PAGE_CACHE_H_
#define CKPTD_TESTS_TESTING_PAGE_CACHE_H_

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "common/base/posix.h"

namespace ckptd {

// Whether the page cache has nothing of an open file of some bytes; touches none of its pages. False
// where that cannot be known.
inline bool IsUncached(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return false;
  const auto bytes = static_cast<size_t>(info.st_size);
  void* const mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return false;
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  const bool known = ::mincore(mapping, bytes, pages.data()) == 0;
  ::munmap(mapping, bytes);
  return known && std::none_of(pages.begin(), pages.end(),
                               [](unsigned char page) { return (page & 1) != 0; });
}

// Whether the page cache has nothing of the file any more. Asks until that is so, for 10 s at most,
// for the kernel keeps a page while it works on it. False at once for a file that is in memory alone.
inline bool DropFromPageCache(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct statfs system = {};
  if (::fstatfs(fd.get(), &system) != 0 || system.f_type == TMPFS_MAGIC) return false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < deadline) {
    // Only what is on disk can be dropped.
    if (::fsync(fd.get()) != 0) return false;
    if (::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) != 0) return false;
    if (IsUncached(fd.get())) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_PAGE_CACHE_H_
