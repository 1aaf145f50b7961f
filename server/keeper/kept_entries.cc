#include "server/keeper/kept_entries.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   "keeping descriptors: " + why + "; run the daemon and the keeper of one ckptd");
}

absl::Status TooMany(const std::string& what) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                   fmt::format("keeping descriptors: the keeper takes at most {}", what));
}

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= KeptEntries::kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

absl::Status KeptEntries::Begin(const std::string& name, bool forget) {
  if (!IsName(name)) return Invalid("the owner has no printable name");
  if (owners_.count(name) == 0 && owners_.size() == kMaxOwners) {
    return TooMany(fmt::format("{} owners", kMaxOwners));
  }
  Owner& owner = owners_[name];
  if (owner.connected) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                     fmt::format("keeping the descriptors of {}: another process of that name is "
                                 "connected; stop it",
                                 name));
  }
  owner.connected = true;
  if (forget) owner.entries.clear();
  return absl::OkStatus();
}

void KeptEntries::End(const std::string& name) {
  const auto at = owners_.find(name);
  if (at == owners_.end()) return;
  DropIncomplete(at->second);
  at->second.connected = false;
  if (at->second.entries.empty()) owners_.erase(at);
}

absl::Status KeptEntries::Put(const std::string& name, const std::string& entry,
                              std::vector<UniqueFd> fds, uint32_t to_come) {
  const auto at = owners_.find(name);
  if (at == owners_.end()) return Invalid("the owner is not known");
  const absl::Status put = Append(at->second, entry, std::move(fds), to_come);
  if (!put.ok()) DropIncomplete(at->second);
  return put;
}

absl::Status KeptEntries::Append(Owner& owner, const std::string& name, std::vector<UniqueFd> fds,
                                 uint32_t to_come) {
  if (!IsName(name)) return Invalid("an entry has no printable name");
  if (fds.empty()) return Invalid("no descriptor came for " + name);
  if (to_come > kMaxDescriptors) return TooMany(fmt::format("{} descriptors", kMaxDescriptors));
  if (owner.name != name) DropIncomplete(owner);  // the rest of that did not arrive
  if (!owner.name.empty() && owner.to_come != to_come + fds.size()) {
    return Invalid(fmt::format("{} of the descriptors of {} are missing", owner.to_come, name));
  }
  if (owner.entries.count(name) == 0 && owner.entries.size() == kMaxEntries) {
    return TooMany(fmt::format("{} entries of one owner", kMaxEntries));
  }
  owner.name = name;
  owner.to_come = to_come;
  std::move(fds.begin(), fds.end(), std::back_inserter(owner.fds));
  if (to_come > 0) return absl::OkStatus();
  owner.entries[name] = std::move(owner.fds);
  DropIncomplete(owner);
  return absl::OkStatus();
}

void KeptEntries::DropIncomplete(Owner& owner) {
  owner.name.clear();
  owner.fds.clear();
  owner.to_come = 0;
}

void KeptEntries::Remove(const std::string& name, const std::string& entry) {
  const auto at = owners_.find(name);
  if (at == owners_.end()) return;
  if (at->second.name == entry) DropIncomplete(at->second);
  at->second.entries.erase(entry);
}

StoredEntries KeptEntries::Take(const std::string& name) {
  const auto at = owners_.find(name);
  return at == owners_.end() ? StoredEntries() : std::exchange(at->second.entries, {});
}

const StoredEntries& KeptEntries::Of(const std::string& name) const {
  static const StoredEntries& none = *new StoredEntries;
  const auto at = owners_.find(name);
  return at == owners_.end() ? none : at->second.entries;
}

}  // namespace ckptd
