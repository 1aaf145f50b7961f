// Percent-encoding (RFC 3986), as in URIs and gRPC's targets.
#ifndef CKPTD_COMMON_BASE_PERCENT_H_
#define CKPTD_COMMON_BASE_PERCENT_H_

#include <string>
#include <string_view>

namespace ckptd {

// Keeps letters, digits, '-', '.', '_', '~' and '/'. All other bytes become %XX.
std::string PercentEncoded(std::string_view path);

// A '%' that is not followed by two hex digits is kept.
std::string PercentDecoded(std::string_view text);

// gRPC's address of a Unix socket. gRPC decodes the part after the scheme, so the path must be
// encoded.
inline std::string UnixTarget(std::string_view path) { return "unix:" + PercentEncoded(path); }

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_PERCENT_H_
