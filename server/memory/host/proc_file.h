// Files below /proc and /sys, and what they are made of.
#ifndef CKPTD_SERVER_MEMORY_HOST_PROC_FILE_H_
#define CKPTD_SERVER_MEMORY_HOST_PROC_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckptd {

// All of it, up to 1 MiB; none when it cannot be read. Such files have no size.
std::optional<std::string> ReadProcFile(const std::string& path);

// The parts between `at`; none of an empty text.
std::vector<std::string_view> SplitText(std::string_view text, char at);

// The number that `text` starts with, after blanks; none for "max" and the like.
std::optional<uint64_t> LeadingNumber(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_PROC_FILE_H_
