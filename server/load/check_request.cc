#include "server/load/check_request.h"

#include <algorithm>
#include <climits>
#include <string>
#include <variant>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/layout.h"
#include "common/plan/view/view.h"
#include "common/source/hub_cache.h"

namespace ckptd {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

// Where a rank is in a mesh is counted, and never compared with who there is.
absl::Status CheckMeshes(const RankLayout& layout, const std::string& source) {
  for (const Mesh& mesh : layout.meshes) {
    const auto strange = std::find_if(mesh.ranks.begin(), mesh.ranks.end(), [&](uint32_t rank) {
      return rank >= layout.world_size;
    });
    if (strange == mesh.ranks.end()) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid,
                     fmt::format("loading {}: a mesh has rank {}, the layout is for {} ranks; state "
                                 "the mesh by the ranks of the whole job",
                                 source, *strange, layout.world_size));
  }
  return absl::OkStatus();
}

// How many ranks a layout is for, and what to do where the group has another number.
struct LayoutRanks {
  uint32_t ranks = 0;
  std::string advice;
};

absl::StatusOr<LayoutRanks> RanksOf(const std::string& rules) {
  CKPTD_ASSIGN_OR_RETURN(const LayoutRules parsed, LayoutRules::Parse(rules));
  return LayoutRanks{parsed.world_size(),
                "start as many daemons as it has ranks, or change the layout; where none was named, "
                "the process counted its ranks by WORLD_SIZE or SLURM_NTASKS (1 if unset): set "
                "WORLD_SIZE and RANK, as torchrun does"};
}

LayoutRanks RanksOf(const RankLayout& layout) {
  return {layout.world_size,
          fmt::format("start as many trainers as daemons, or daemons as trainers (ckptd launch "
                      "--nproc {}); a process counts its trainers by WORLD_SIZE or SLURM_NTASKS, "
                      "1 if unset",
                      layout.world_size)};
}

absl::Status CheckLayout(const LoadRequest& request, uint32_t rank, uint32_t world_size) {
  LayoutRanks wanted;
  if (const auto* rules = std::get_if<std::string>(&request.layout)) {
    CKPTD_ASSIGN_OR_RETURN(wanted, RanksOf(*rules));
  } else {
    const RankLayout& layout = *std::get<std::shared_ptr<const RankLayout>>(request.layout);
    CKPTD_RETURN_IF_ERROR(CheckMeshes(layout, request.source));
    wanted = RanksOf(layout);
    if (wanted.ranks == world_size) return CheckRankOf("loading", layout, rank, request.source);
  }
  if (wanted.ranks == world_size) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kWrongWorldSize,
                   fmt::format("loading {}: the layout is for {} rank{}, this group has {}; {}",
                               request.source, wanted.ranks, wanted.ranks == 1 ? "" : "s",
                               world_size, wanted.advice));
}

}  // namespace

absl::Status CheckRankOf(std::string_view doing, const RankLayout& layout, uint32_t rank,
                         const std::string& source) {
  if (layout.rank == rank) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kWrongRank,
                   fmt::format("{} {}: the request states the tensors of rank {}, this daemon serves "
                               "rank {}; connect to that rank's daemon: if the address comes from "
                               "CKPTD_ADDRESS, write {{rank}} in it",
                               doing, source, layout.rank, rank));
}

absl::Status CheckRequestId(std::string_view doing, const std::string& what,
                            const std::string& request_id) {
  if (request_id.size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("{} {}: its request id has {} bytes, at most {} are taken; use a "
                               "UUID",
                               doing, what, request_id.size(), kMaxRequestIdBytes));
}

absl::Status CheckSource(std::string_view doing, const std::string& source) {
  if (source.size() > PATH_MAX) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("{} a source whose path has {} bytes: at most {} are possible; "
                                 "check the request",
                                 doing, source.size(), PATH_MAX));
  }
  CKPTD_RETURN_IF_ERROR(CheckScheme(source));
  if (source.empty() || source[0] != '/') {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("{} \"{}\": the source must be an absolute path on the machine "
                                 "of {} daemon",
                                 doing, source, doing == "loading" ? "rank 0's" : "this"));
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const LoadRequest& request, uint32_t rank, uint32_t world_size) {
  if (rank >= world_size) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kWrongRank,
                     fmt::format("loading {}: rank {} asks for it, this group has ranks 0 to {}",
                                 request.source, rank, world_size - 1));
  }
  CKPTD_RETURN_IF_ERROR(CheckSource("loading", request.source));
  CKPTD_RETURN_IF_ERROR(view::ReadView(request.view).status());
  if (request.kind.has_value() && EndsWithDaemon(*request.kind) &&
      request.intended == AttachMode::kExclusive) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                     fmt::format("loading {} for EXCLUSIVE as {}: such memory stays the daemon's "
                                 "and cannot be taken; load it as VMM_FD, or for PRIVATE",
                                 request.source, NameOf(*request.kind)));
  }
  return CheckLayout(request, rank, world_size);
}

}  // namespace ckptd
