// What a misspelt word was meant to be.
#ifndef CKPTD_CLIENT_CLI_CLOSEST_H_
#define CKPTD_CLIENT_CLI_CLOSEST_H_

#include <string>
#include <string_view>
#include <vector>

namespace ckptd::cli {

// The one of `known` that is at most two letters of difference (one left out, added, or another)
// away from `word`, and less than half of it; the first of equals, empty when there is none.
std::string Closest(std::string_view word, const std::vector<std::string>& known);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_CLOSEST_H_
