#include "server/daemon/peer_auth.h"

#include <string>

#include <fmt/format.h>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/group_key.h"

namespace ckptd {
namespace {

// Bundles of all public authorities have 250 KB.
constexpr size_t kMaxPemBytes = 4 << 20;

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, why);
}

bool SaysTls(const Config& config) {
  return !config.tls_cert.empty() || !config.tls_key.empty() || !config.tls_ca.empty() ||
         !config.tls_name.empty();
}

bool SaysKey(const Config& config, const EnvironmentReader& read) {
  return !config.group_key_file.empty() || read(kGroupKeyVariable).has_value();
}

absl::StatusOr<std::string> ReadFileOf(const std::string& key, const std::string& path,
                                       size_t most) {
  auto text = ReadSmallFile(path, most);
  if (text.ok()) return text;
  return Invalid(fmt::format("reading --{}: {}", key, MessageOf(text.status())));
}

// `label` is in the first line of the wanted block: "CERTIFICATE", "PRIVATE KEY".
absl::StatusOr<std::string> ReadPem(const std::string& key, const std::string& path,
                                    const std::string& label) {
  CKPTD_ASSIGN_OR_RETURN(std::string text, ReadFileOf(key, path, kMaxPemBytes));
  const size_t at = text.find("-----BEGIN ");
  const size_t end = at == std::string::npos ? at : text.find('\n', at);
  if (at != std::string::npos && text.substr(at, end - at).find(label) != std::string::npos) {
    return text;
  }
  return Invalid(fmt::format("reading --{} {}: it holds no {} in PEM form", key, path, label));
}

absl::StatusOr<PeerSecurity> FromCertificates(const Config& config) {
  if (config.tls_cert.empty() || config.tls_key.empty() || config.tls_ca.empty()) {
    return Invalid("checking --tls-cert, --tls-key and --tls-ca: give all three, or none of the "
                   "--tls keys and a group key");
  }
  PeerSecurity security;
  CKPTD_ASSIGN_OR_RETURN(security.certificate, ReadPem("tls-cert", config.tls_cert, "CERTIFICATE"));
  CKPTD_ASSIGN_OR_RETURN(security.key, ReadPem("tls-key", config.tls_key, "PRIVATE KEY"));
  CKPTD_ASSIGN_OR_RETURN(security.authorities, ReadPem("tls-ca", config.tls_ca, "CERTIFICATE"));
  security.name = config.tls_name;
  return security;
}

absl::StatusOr<PeerSecurity> FromKey(const Config& config, const EnvironmentReader& read) {
  if (config.group_key_file.empty()) return SecurityOfGroupKey(read(kGroupKeyVariable).value());
  CKPTD_ASSIGN_OR_RETURN(const std::string key, ReadFileOf("group-key-file", config.group_key_file,
                                                           kMaxGroupKeyBytes));
  return SecurityOfGroupKey(key);
}

}  // namespace

bool HasPeerAuthSetting(const Config& config, const EnvironmentReader& read) {
  return config.peer_auth == "none" || SaysTls(config) || SaysKey(config, read);
}

absl::StatusOr<PeerSecurity> ReadPeerSecurity(const Config& config, const EnvironmentReader& read) {
  const bool tls = SaysTls(config);
  const bool key = SaysKey(config, read);
  const bool none = config.peer_auth == "none";
  if (tls + key + none > 1) {
    return Invalid(fmt::format("checking how the daemons of the group know each other: give a group "
                               "key (--group-key-file or {}), or certificates (--tls-cert), or "
                               "--peer-auth none, and not two of them",
                               kGroupKeyVariable));
  }
  if (none) return PeerSecurity();
  if (tls) return FromCertificates(config);
  if (key) return FromKey(config, read);
  if (config.world_size == 1) return SecurityOfGroupKey(NewGroupKey());
  return Invalid(fmt::format("checking how the {} daemons of the group know each other: make a group "
                             "key with `openssl rand -hex 32` and give it to all of them as {} or "
                             "--group-key-file, or give them certificates (--tls-cert); on a network "
                             "where nobody else is, --peer-auth none does without",
                             config.world_size, kGroupKeyVariable));
}

}  // namespace ckptd
