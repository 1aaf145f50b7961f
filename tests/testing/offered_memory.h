// A memfd of this process by which it offers its memory, as clients make it.
#ifndef CKPTD_TESTS_TESTING_OFFERED_MEMORY_H_
#define CKPTD_TESTS_TESTING_OFFERED_MEMORY_H_

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/base/posix.h"

namespace ckptd {

inline constexpr int kOfferSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

inline std::string LittleEndian(uint64_t value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

class OfferedMemory {
 public:
  // ranges: (address, bytes), which together hold the data of `json`.
  OfferedMemory(const std::string& json, const std::vector<std::pair<const void*, uint64_t>>& ranges)
      : OfferedMemory(Start(json, ranges), DataBytes(ranges), kOfferSeals) {}
  // A file that starts like this and is longer by so many bytes.
  OfferedMemory(const std::string& start, uint64_t more, int seals)
      : fd_(::memfd_create("offer", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    good_ = ::write(fd_.get(), start.data(), start.size()) == static_cast<ssize_t>(start.size()) &&
            ::ftruncate(fd_.get(), static_cast<off_t>(start.size() + more)) == 0 &&
            ::fcntl(fd_.get(), F_ADD_SEALS, seals) == 0;
  }

  static std::string Start(const std::string& json,
                           const std::vector<std::pair<const void*, uint64_t>>& ranges) {
    std::string start = "CKPTDMEM" + LittleEndian(ranges.size());
    for (const auto& [address, bytes] : ranges) {
      uint64_t number = 0;
      std::memcpy(&number, &address, sizeof number);
      start += LittleEndian(number) + LittleEndian(bytes);
    }
    return start + LittleEndian(json.size()) + json;
  }
  static uint64_t DataBytes(const std::vector<std::pair<const void*, uint64_t>>& ranges) {
    uint64_t sum = 0;
    for (const auto& range : ranges) sum += range.second;
    return sum;
  }

  bool good() const { return good_; }
  int fd() const { return fd_.get(); }
  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_.get()); }

 private:
  UniqueFd fd_;
  bool good_ = false;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_OFFERED_MEMORY_H_
