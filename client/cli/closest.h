// Finds the word that a misspelt one was meant to be.
#ifndef CKPTD_CLIENT_CLI_CLOSEST_H_
#define CKPTD_CLIENT_CLI_CLOSEST_H_

#include <string>
#include <string_view>
#include <vector>

namespace ckptd::cli {

// The one of `known` that differs from `word` in at most two letters (missing, added or changed),
// and in less than half of them. The first if several do, empty if none.
std::string Closest(std::string_view word, const std::vector<std::string>& known);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_CLOSEST_H_
