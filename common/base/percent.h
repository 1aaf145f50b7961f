// Percent-encoding (RFC 3986), as URIs and gRPC's targets have it.
#ifndef CKPTD_COMMON_BASE_PERCENT_H_
#define CKPTD_COMMON_BASE_PERCENT_H_

#include <string>
#include <string_view>

namespace ckptd {

// Letters, digits, '-', '.', '_', '~' and '/' as they are, all other bytes as %XX.
std::string PercentEncoded(std::string_view path);

// A '%' without two hex digits behind it stands for itself.
std::string PercentDecoded(std::string_view text);

// What gRPC listens at or dials for a Unix socket: it decodes what follows the scheme, so that
// a path as it is would be another one's.
inline std::string UnixTarget(std::string_view path) { return "unix:" + PercentEncoded(path); }

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_PERCENT_H_
