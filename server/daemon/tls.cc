#include "server/daemon/tls.h"

#include <string>

#include <fmt/format.h>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Bundles of every public authority have 250 KB.
constexpr size_t kMaxPemBytes = 4 << 20;

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, why);
}

// `label` stands in the first line of what is wanted: "CERTIFICATE", "PRIVATE KEY".
absl::StatusOr<std::string> ReadPem(const std::string& key, const std::string& path,
                                    const std::string& label) {
  auto text = ReadSmallFile(path, kMaxPemBytes);
  if (!text.ok()) return Invalid(fmt::format("reading --{}: {}", key, MessageOf(text.status())));
  const size_t at = text->find("-----BEGIN ");
  const size_t end = at == std::string::npos ? at : text->find('\n', at);
  if (at != std::string::npos && text->substr(at, end - at).find(label) != std::string::npos) {
    return text;
  }
  return Invalid(fmt::format("reading --{} {}: it holds no {} in PEM form", key, path, label));
}

}  // namespace

absl::StatusOr<PeerSecurity> ReadPeerSecurity(const Config& config) {
  PeerSecurity security;
  const bool any = !config.tls_cert.empty() || !config.tls_key.empty() || !config.tls_ca.empty();
  const bool all = !config.tls_cert.empty() && !config.tls_key.empty() && !config.tls_ca.empty();
  if (any != all || (!any && !config.tls_name.empty())) {
    return Invalid("checking --tls-cert, --tls-key and --tls-ca: give all three, or none of the "
                   "--tls keys for plain connections");
  }
  if (!any) return security;
  CKPTD_ASSIGN_OR_RETURN(security.certificate, ReadPem("tls-cert", config.tls_cert, "CERTIFICATE"));
  CKPTD_ASSIGN_OR_RETURN(security.key, ReadPem("tls-key", config.tls_key, "PRIVATE KEY"));
  CKPTD_ASSIGN_OR_RETURN(security.authorities, ReadPem("tls-ca", config.tls_ca, "CERTIFICATE"));
  security.name = config.tls_name;
  return security;
}

}  // namespace ckptd
