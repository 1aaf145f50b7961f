// Text for people: sizes, times, and names that come from files.
#ifndef CKPTD_CLIENT_CLI_TEXT_H_
#define CKPTD_CLIENT_CLI_TEXT_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/cpp/types.h"

namespace ckptd::cli {

// Columns of an escaped text: its number of code points.
size_t Columns(std::string_view text);

// At most `columns` code points. A cut text ends with "...".
std::string Shorten(std::string_view text, size_t columns);

// Decimal, three digits at most and one after the point: "512 B", "1.5 GB", "153 GB".
std::string HumanBytes(uint64_t bytes);
// "4.5 GB/s". "-" if there is no valid rate.
std::string HumanRate(double bytes_per_second);
// "120 ms", "3.4 s", "2 min 5 s", "3 h 20 min", "5 d 2 h".
std::string HumanDuration(std::chrono::duration<double> duration);
// How long ago it was. Empty if it is not set.
std::string Age(const google::protobuf::Timestamp& time, TimePoint now);
// "1 tensor", "2 tensors".
std::string Counted(uint64_t count, std::string_view thing);
// "; --rank chooses another", to be added to a message about one of several ranks.
std::string_view OtherRanks(int32_t world_size);
// "[1024, 4096]".
std::string JoinShape(const std::vector<uint64_t>& shape);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_TEXT_H_
