#include "server/protocol/domain.h"

#include <sys/random.h>

#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "common/base/digest.h"

namespace ckptd {
namespace {

// Canonical bytes of values, for digests: lengths first, so that no two
// different values share a spelling.
class Writer {
 public:
  void Number(uint64_t value) {
    std::array<char, 8> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
    bytes_.append(bytes.data(), bytes.size());
  }
  void Text(std::string_view text) {
    Number(text.size());
    bytes_ += text;
  }
  template <typename Range>
  void Numbers(const Range& values) {
    Number(values.size());
    for (const auto value : values) Number(static_cast<uint64_t>(value));
  }
  uint64_t Digest() const { return Xxh3(bytes_); }

 private:
  std::string bytes_;
};

void WriteSharding(Writer& out, const Sharding& sharding) {
  out.Number(sharding.mesh.has_value() ? *sharding.mesh + 1 : 0);
  out.Number(sharding.placements.size());
  for (const Placement& placement : sharding.placements) {
    out.Number(static_cast<uint64_t>(placement.kind));
    out.Number(static_cast<uint64_t>(static_cast<int64_t>(placement.dim)));
    out.Number(placement.split_factor);
  }
  out.Number(sharding.padded_dim.has_value() ? 1 : 0);
  if (sharding.padded_dim.has_value()) {
    out.Number(static_cast<uint64_t>(static_cast<int64_t>(*sharding.padded_dim)));
  }
  out.Number(sharding.boxes.size());
  for (const Box& box : sharding.boxes) {
    out.Numbers(box.offsets);
    out.Numbers(box.extents);
  }
}

void WritePolicy(Writer& out, const DtypePolicy& policy) {
  out.Number(static_cast<uint64_t>(policy.cast_to));
  out.Number(policy.keep_f32.size());
  for (const std::string& pattern : policy.keep_f32) out.Text(pattern);
}

}  // namespace

std::string_view NameOf(CheckpointState state) {
  switch (state) {
    case CheckpointState::kLoading: return "LOADING";
    case CheckpointState::kActive: return "ACTIVE";
    case CheckpointState::kFailed: return "FAILED";
    case CheckpointState::kTaken: return "TAKEN";
  }
  return "UNKNOWN";
}

std::string_view NameOf(Stage stage) {
  switch (stage) {
    case Stage::kUnspecified: return "unspecified";
    case Stage::kGathering: return "gathering";
    case Stage::kQueued: return "queued";
    case Stage::kOpening: return "opening";
    case Stage::kPlanning: return "planning";
    case Stage::kAllocating: return "allocating";
    case Stage::kTransferring: return "transferring";
    case Stage::kPublishing: return "publishing";
    case Stage::kWaitingForMemory: return "waiting for memory";
  }
  return "unknown";
}

bool IsRankForm(const LoadRequest& request) { return request.layout.index() == 1; }

uint64_t LoadKey(const LoadRequest& request) {
  Writer out;
  out.Text(request.source);
  out.Number(request.layout.index());
  if (const auto* rules = std::get_if<std::string>(&request.layout)) out.Text(*rules);
  WritePolicy(out, request.policy);
  out.Number(request.digests ? 1 : 0);
  out.Number(request.intended == AttachMode::kExclusive ? 1 : 0);
  out.Number(request.kind.has_value() && EndsWithDaemon(*request.kind) ? 1 : 0);
  if (request.guest.has_value()) out.Number(request.guest->uid);
  if (!request.view.empty()) out.Text(request.view);
  return out.Digest();
}

uint64_t LayoutDigest(const RankLayout& layout) {
  Writer out;
  out.Number(layout.rank);
  out.Number(layout.world_size);
  out.Number(layout.meshes.size());
  for (const Mesh& mesh : layout.meshes) {
    out.Numbers(mesh.shape);
    out.Numbers(mesh.ranks);
  }
  out.Number(layout.shardings.size());
  for (const Sharding& sharding : layout.shardings) WriteSharding(out, sharding);
  out.Number(layout.targets.size());
  for (const TargetSpec& target : layout.targets) {
    out.Text(target.name);
    out.Number(target.sharding);
    out.Number(static_cast<uint64_t>(target.dtype));
    out.Number(target.expected_shape.has_value() ? 1 : 0);
    if (target.expected_shape.has_value()) out.Numbers(*target.expected_shape);
    out.Number(target.aliases.size());
    for (const std::string& alias : target.aliases) out.Text(alias);
    out.Number(target.optional ? 1 : 0);
    out.Number(target.flat.has_value() ? 1 : 0);
    if (!target.flat.has_value()) continue;
    out.Number(target.flat->flat);
    out.Number(target.flat->begin);
  }
  out.Number(layout.flats.size());
  for (const FlatParameter& flat : layout.flats) {
    out.Text(flat.name);
    out.Number(flat.sharding);
    out.Number(flat.elements);
  }
  out.Number(layout.skip_missing ? 1 : 0);
  out.Number(layout.refuse_unexpected ? 1 : 0);
  return out.Digest();
}

namespace {

// `layout`: LayoutDigest in rank form; unset in rule form.
uint64_t RequestDigest(uint64_t load_key, std::optional<uint64_t> layout) {
  if (!layout.has_value()) return load_key;
  Writer out;
  out.Number(load_key);
  out.Number(*layout);
  return out.Digest();
}

std::optional<uint64_t> RankLayoutDigest(const LoadRequest& request) {
  const auto* layout = std::get_if<std::shared_ptr<const RankLayout>>(&request.layout);
  if (layout == nullptr) return std::nullopt;
  return LayoutDigest(**layout);
}

}  // namespace

uint64_t RequestDigest(const LoadRequest& request) {
  return RequestDigest(LoadKey(request), RankLayoutDigest(request));
}

IdentifiedRequest::IdentifiedRequest(LoadRequest asked) : request(std::move(asked)) {
  const std::optional<uint64_t> layout = RankLayoutDigest(request);
  load_key = LoadKey(request);
  digest = RequestDigest(load_key, layout);
  const bool asked_for_digests = std::exchange(request.digests, true);
  digest_with_digests = RequestDigest(LoadKey(request), layout);
  request.digests = asked_for_digests;
}

std::string DescribeLayout(const LoadRequest& request) {
  const auto* rules = std::get_if<std::string>(&request.layout);
  if (rules == nullptr) return "requested by each rank";
  return rules->size() <= 64 ? *rules : "rules (" + std::to_string(rules->size()) + " bytes)";
}

std::string DescribeView(const LoadRequest& request) {
  if (request.view.size() <= 64) return request.view;
  return "rules (" + std::to_string(request.view.size()) + " bytes, " +
         HexDigest(Xxh3(request.view)) + ")";
}

std::vector<std::string> DifferingFields(const LoadRequest& request, const LoadRequest& other) {
  std::vector<std::string> fields;
  LoadRequest same_layout = other;
  same_layout.layout = request.layout;
  LoadRequest same_policy = same_layout;
  same_policy.policy = request.policy;
  LoadRequest same_intent = same_policy;
  same_intent.intended = request.intended;
  if (RequestDigest(other) != RequestDigest(same_layout)) fields.emplace_back("layout");
  if (RequestDigest(same_layout) != RequestDigest(same_policy)) fields.emplace_back("dtype_policy");
  if (RequestDigest(same_policy) != RequestDigest(same_intent)) fields.emplace_back("intended_mode");
  LoadRequest same_kind = same_intent;
  same_kind.kind = request.kind;
  if (RequestDigest(same_intent) != RequestDigest(same_kind)) fields.emplace_back("handle_kind");
  if (other.view != request.view) fields.emplace_back("view");
  if (same_intent.digests != request.digests) fields.emplace_back("digests");
  return fields;
}

std::string RandomHex(size_t bytes) {
  std::string raw(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::getrandom(raw.data() + done, bytes - done, 0);
    if (n < 0 && errno != EINTR) std::abort();  // no entropy: nothing safe can follow
    if (n > 0) done += static_cast<size_t>(n);
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : raw) {
    out.push_back(kDigits[(static_cast<unsigned char>(c) >> 4) & 15]);
    out.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
  }
  return out;
}

}  // namespace ckptd
