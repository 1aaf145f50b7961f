// Owners of POSIX handles, and helpers that read whole ranges or files.
#ifndef CKPTD_COMMON_BASE_POSIX_H_
#define CKPTD_COMMON_BASE_POSIX_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

// Owns one file descriptor. Move-only; closes on destruction.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = other.Release();
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();

 private:
  int fd_ = -1;
};

// Owns one mmap. Move-only; unmaps on destruction.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  ~Mapping() { Reset(); }
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      Reset();
      address_ = std::exchange(other.address_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(address_); }
  size_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data(), bytes_}; }
  bool valid() const { return address_ != nullptr; }
  void Reset();

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

// An empty memfd that may be sealed. Invalid, with errno set, if there is none.
UniqueFd NewMemfd(const char* name);

// Whether `fd` is a file with a name, in memory (tmpfs), of this process's user. Its size cannot be
// sealed, but only this user and root could change it.
bool IsNamedFileInMemory(int fd);

// A second descriptor of the same open file description. Errors: `doing` and the system's reason.
absl::StatusOr<UniqueFd> DuplicateFd(int fd, const std::string& doing);

// Opens a file for reading. Errors name the path.
absl::StatusOr<UniqueFd> OpenForReading(const std::string& path);

// Reads exactly out.size() bytes at `offset`. A file that ends early is DataLoss SOURCE_CHANGED,
// because sizes were checked when it was opened.
absl::Status PreadFull(int fd, uint64_t offset, std::span<std::byte> out, const std::string& path);

// The whole file as text. Refuses a file of more than `limit` bytes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t limit);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_POSIX_H_
