// Reads files below /proc and /sys, and takes their text apart.
#ifndef CKPTD_SERVER_MEMORY_HOST_PROC_FILE_H_
#define CKPTD_SERVER_MEMORY_HOST_PROC_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckptd {

// The whole file, up to 1 MiB. None if it cannot be read. Such files report no size.
std::optional<std::string> ReadProcFile(const std::string& path);

// The parts between the separators `at`. An empty text has none.
std::vector<std::string_view> SplitText(std::string_view text, char at);

// The number that `text` starts with, after blanks. None for "max" and the like.
std::optional<uint64_t> LeadingNumber(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_PROC_FILE_H_
