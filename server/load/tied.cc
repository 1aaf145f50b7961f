#include "server/load/tied.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/byte_swap.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/piece_reader.h"
#include "common/source/registry.h"

namespace ckptd {
namespace {

constexpr uint64_t kStep = 1 << 20;

using Pair = std::pair<const TensorEntry*, const TensorEntry*>;

// Each once, however many ranks have it.
std::set<Pair> PairsOf(const CheckpointIndex& index, std::span<const RankLayout* const> layouts) {
  std::set<Pair> pairs;
  for (const RankLayout* layout : layouts) {
    for (const TargetSpec& target : layout->targets) {
      if (target.aliases.empty()) continue;
      const TensorEntry* first = index.Find(target.name);
      for (const std::string& alias : target.aliases) {
        const TensorEntry* const other = index.Find(alias);
        if (other == nullptr || other == first) continue;
        if (first != nullptr) pairs.emplace(first, other);
        if (first == nullptr) first = other;
      }
    }
  }
  return pairs;
}

absl::Status Apart(const Pair& pair, std::string_view how) {
  const auto& [one, other] = pair;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                   fmt::format("tensors '{}' and '{}' are to share memory, and {}; untie them in the "
                               "model, leave one of them out of the checkpoint, or pass tied='first' "
                               "to take that of '{}'",
                               one->name, other->name, how, one->name),
                   {{"tensor", one->name}});
}

// For equal boxes, extents and strides the bytes of both come in the same order.
absl::Status ComparePieces(const CheckpointIndex& index, const Pair& pair, const Piece& a,
                           const Piece& b, const std::function<absl::Status()>& interrupted,
                           const SourceAccess& access) {
  CKPTD_ASSIGN_OR_RETURN(const auto object_a, OpenObject(index.files[a.file].path, access));
  CKPTD_ASSIGN_OR_RETURN(const auto object_b, OpenObject(index.files[b.file].path, access));
  const size_t swap = pair.first->big_endian == pair.second->big_endian
                          ? 1
                          : NumberBytesOf(pair.second->dtype);
  const auto signs = static_cast<Signs>(static_cast<int>(SignsOf(*pair.first)) ^
                                        static_cast<int>(SignsOf(*pair.second)));
  PieceReader reader_a(*object_a, a, pair.first->dtype);
  PieceReader reader_b(*object_b, b, pair.second->dtype);
  std::vector<std::byte> of_a(std::min(a.bytes, kStep));
  std::vector<std::byte> of_b(of_a.size());
  // What elements share comes once, so that it may end before.
  for (uint64_t at = 0; at < a.bytes;) {
    CKPTD_RETURN_IF_ERROR(interrupted());
    CKPTD_ASSIGN_OR_RETURN(const size_t n, reader_a.Read(of_a));
    CKPTD_RETURN_IF_ERROR(reader_b.Read(of_b).status());
    SwapBytes(swap, of_b.data(), of_b.data(), of_b.size());
    NegateNumbers(NumberBytesOf(pair.second->dtype), signs, of_b.data(), of_b.size());
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(n), of_b.begin())) {
      return Apart(pair, "have different values in the source");
    }
    if (n == 0) break;
    at += n;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTied(const CheckpointIndex& index, std::span<const RankLayout* const> layouts,
                       const std::function<absl::Status()>& interrupted,
                       const SourceAccess& access) {
  for (const Pair& pair : PairsOf(index, layouts)) {
    const auto& [one, other] = pair;
    const auto same = [](const Piece& a, const Piece& b) {
      return a.box == b.box && a.bytes == b.bytes && a.strides == b.strides;
    };
    if (!std::equal(one->pieces.begin(), one->pieces.end(), other->pieces.begin(),
                    other->pieces.end(), same)) {
      return Apart(pair, "lie in different ways in the source, so that they are not compared");
    }
    for (size_t i = 0; i < one->pieces.size(); ++i) {
      CKPTD_RETURN_IF_ERROR(
          ComparePieces(index, pair, one->pieces[i], other->pieces[i], interrupted, access));
    }
    Log(LogLevel::kDebug, "{}: '{}' and '{}' are to share memory, and are equal", index.source,
        one->name, other->name);
  }
  return absl::OkStatus();
}

}  // namespace ckptd
