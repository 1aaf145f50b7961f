#include "common/plan/zone_reads.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "common/plan/file_order.h"
#include "common/plan/plan.h"
#include "common/plan/read_union.h"
#include "common/plan/tensor_kind.h"
#include "common/source/piece.h"

namespace ckptd {
namespace {

// More copies than this are not held at once.
constexpr uint64_t kMaxCopiesAtOnce = 1'000'000;

// An item of a cohort.
struct ItemAt {
  size_t cohort = 0;
  const CohortPlan::Item* item = nullptr;
};

std::vector<uint64_t> UnionOf(const std::vector<CopyOp>& copies, size_t files) {
  std::vector<const CopyOp*> pointers;
  pointers.reserve(copies.size());
  for (const CopyOp& copy : copies) pointers.push_back(&copy);
  return ReadUnion(pointers, files);
}

// A zone is a run of places that cannot be cut: mostly a single tensor.
class ZoneCounter {
 public:
  ZoneCounter(const CheckpointIndex& index, std::span<const CohortPlan* const> cohorts,
              const std::vector<std::vector<const PlannedRank*>>& members)
      : cohorts_(cohorts), members_(members), bytes_(index.files.size()) {}

  // `items` are all of the zone, of so many tensors of the source.
  void Count(const std::vector<ItemAt>& items, uint64_t tensors) {
    if (items.empty()) return;
    if (tensors == 1 && PiecesAreDisjoint(items.front())) return CountTensor(items, bytes_);
    if (CopiesOf(items) > kMaxCopiesAtOnce) return CountFromAbove(items);
    const std::vector<uint64_t> more = UnionOf(Copies(items, /*in_files=*/true), bytes_.size());
    for (size_t file = 0; file < bytes_.size(); ++file) bytes_[file] += more[file];
  }

  const std::vector<uint64_t>& bytes() const { return bytes_; }

 private:
  // What decides how many bytes of each piece of a tensor are read.
  using Signature = std::vector<std::pair<size_t, uint32_t>>;  // cohort, kind

  const TensorKind& KindOf(const ItemAt& at) const {
    return cohorts_[at.cohort]->kinds()[at.item->kind];
  }
  const FilePlace& PlaceOf(const ItemAt& at, size_t piece) const {
    return cohorts_[at.cohort]->PlacesOf(*at.item)[piece];
  }

  bool PiecesAreDisjoint(const ItemAt& at) const;
  uint64_t CopiesOf(const std::vector<ItemAt>& items) const;
  std::vector<CopyOp> Copies(const std::vector<ItemAt>& items, bool in_files) const;
  void CountTensor(const std::vector<ItemAt>& items, std::vector<uint64_t>& bytes);
  void CountFromAbove(std::vector<ItemAt> items);

  const std::span<const CohortPlan* const> cohorts_;
  const std::vector<std::vector<const PlannedRank*>>& members_;
  std::vector<uint64_t> bytes_;
  std::map<Signature, std::vector<uint64_t>> known_;  // bytes per piece
};

bool ZoneCounter::PiecesAreDisjoint(const ItemAt& at) const {
  const TensorKind& kind = KindOf(at);
  if (kind.pieces.size() < 2) return true;
  std::vector<std::tuple<uint32_t, uint64_t, uint64_t>> extents;
  for (size_t i = 0; i < kind.pieces.size(); ++i) {
    const FilePlace& place = PlaceOf(at, i);
    extents.emplace_back(place.file, place.offset,
                         place.offset + SpanOf(*kind.pieces[i], kind.from));
  }
  std::sort(extents.begin(), extents.end());
  for (size_t i = 1; i < extents.size(); ++i) {
    const auto& [file, begin, end] = extents[i - 1];
    if (std::get<0>(extents[i]) == file && std::get<1>(extents[i]) < end) return false;
  }
  return true;
}

uint64_t ZoneCounter::CopiesOf(const std::vector<ItemAt>& items) const {
  uint64_t copies = 0;
  for (const ItemAt& at : items) {
    for (const PlannedRank* rank : members_[at.cohort]) {
      copies += (*rank->shares)[at.item->kind].copies;
    }
  }
  return copies;
}

// All ranks' copies of the items; in the files, or with the pieces for files.
std::vector<CopyOp> ZoneCounter::Copies(const std::vector<ItemAt>& items, bool in_files) const {
  std::vector<CopyOp> copies;
  for (const ItemAt& at : items) {
    const std::vector<Mesh>& meshes = cohorts_[at.cohort]->layout().meshes;
    for (const PlannedRank* rank : members_[at.cohort]) {
      const auto part = PartOf(KindOf(at), meshes, rank->rank);
      if (!part.ok()) continue;  // it was planned: there is none
      for (const CopyOp& copy : part->copies) {
        CopyOp& added = copies.emplace_back(copy);
        if (!in_files) continue;
        const FilePlace& place = PlaceOf(at, copy.file);
        added.file = place.file;
        added.file_offset += place.offset;
      }
    }
  }
  return copies;
}

// `items` are those of one tensor.
void ZoneCounter::CountTensor(const std::vector<ItemAt>& items, std::vector<uint64_t>& bytes) {
  Signature signature;
  for (const ItemAt& at : items) signature.emplace_back(at.cohort, at.item->kind);
  const size_t pieces = KindOf(items.front()).pieces.size();
  auto known = known_.find(signature);
  if (known == known_.end()) {
    known = known_.emplace(signature, UnionOf(Copies(items, /*in_files=*/false), pieces)).first;
  }
  for (size_t i = 0; i < pieces; ++i) bytes[PlaceOf(items.front(), i).file] += known->second[i];
}

// Each tensor for itself, but of no file more than the zone has of it.
void ZoneCounter::CountFromAbove(std::vector<ItemAt> items) {
  std::vector<uint64_t> sum(bytes_.size());
  std::vector<uint64_t> begin(bytes_.size(), std::numeric_limits<uint64_t>::max());
  std::vector<uint64_t> end(bytes_.size());
  std::stable_sort(items.begin(), items.end(), [](const ItemAt& a, const ItemAt& b) {
    return a.item->source < b.item->source;
  });
  for (auto first = items.begin(); first != items.end();) {
    const auto last = std::find_if(first, items.end(), [first](const ItemAt& at) {
      return at.item->source != first->item->source;
    });
    CountTensor({first, last}, sum);
    const TensorKind& kind = KindOf(*first);
    for (size_t i = 0; i < kind.pieces.size(); ++i) {
      const FilePlace& place = PlaceOf(*first, i);
      begin[place.file] = std::min(begin[place.file], place.offset);
      end[place.file] =
          std::max(end[place.file], place.offset + SpanOf(*kind.pieces[i], kind.from));
    }
    first = last;
  }
  for (size_t file = 0; file < bytes_.size(); ++file) {
    if (end[file] != 0) bytes_[file] += std::min(sum[file], end[file] - begin[file]);
  }
}

}  // namespace

std::vector<uint64_t> ReadBytesOf(const CheckpointIndex& index,
                                  std::span<const CohortPlan* const> cohorts,
                                  const std::vector<std::vector<const PlannedRank*>>& members) {
  ZoneCounter counter(index, cohorts, members);
  std::vector<ItemCursor> cursors(cohorts.begin(), cohorts.end());
  const std::vector<PlaceInOrder> order = OrderInFiles(index, cohorts);
  std::vector<ItemAt> items;
  uint64_t tensors = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    tensors += order[i].tensors;
    const bool last = i + 1 == order.size();
    if (!last && !order[i + 1].can_cut) continue;
    for (size_t c = 0; c < cohorts.size(); ++c) {
      const ItemSpan span = last ? cursors[c].Rest() : cursors[c].UpTo(order[i + 1].place);
      for (size_t at = span.first; at < span.second; ++at) {
        items.push_back({c, &cohorts[c]->items()[at]});
      }
    }
    counter.Count(items, tensors);
    items.clear();
    tensors = 0;
  }
  return counter.bytes();
}

}  // namespace ckptd
