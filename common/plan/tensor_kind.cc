#include "common/plan/tensor_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/validate.h"
#include "common/plan/box_copy.h"
#include "common/plan/flat_parameter.h"
#include "common/source/piece.h"

namespace ckptd {
namespace {

absl::Status NotCovered(const std::string& sentence) {
  return MakeError(absl::StatusCode::kInternal, reason::kCoverage, sentence);
}

// A piece must be what it says before any address is computed from it.
absl::Status CheckPiece(const Piece& piece, const TensorEntry& source,
                        const CheckpointIndex& index) {
  const std::string_view why =
      piece.file < index.files.size()
          ? WhyImpossible(piece, source, index.files[piece.file].bytes)
          : std::string_view("the source has no such file");
  if (why.empty()) return absl::OkStatus();
  return NotCovered(fmt::format("the index places {} bytes at offset {} of file {}, which cannot "
                                "be: {}",
                                piece.bytes, piece.offset, piece.file, why));
}

absl::Status CheckDisjoint(const TensorKind& kind) {
  if (kind.pieces.size() < 2) return absl::OkStatus();
  std::vector<Box> boxes;
  boxes.reserve(kind.pieces.size());
  for (const Piece* piece : kind.pieces) boxes.push_back(piece->box);
  if (!FindOverlap(boxes).has_value()) return absl::OkStatus();
  return NotCovered("two pieces of the source overlap");
}

bool SameKind(const TensorKind& a, const TensorKind& b) {
  return a.sharding == b.sharding && a.flat == b.flat && a.from == b.from && a.to == b.to &&
         a.swap == b.swap && a.negate == b.negate && *a.shape == *b.shape &&
         std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(),
                    [](const Piece* x, const Piece* y) {
                      return x->box == y->box && x->strides == y->strides;
                    });
}

size_t HashOf(const TensorKind& kind) {
  size_t hash = std::hash<const void*>()(kind.sharding);
  const auto mix = [&hash](uint64_t value) {
    hash = (hash ^ static_cast<size_t>(value)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  if (kind.flat.has_value()) mix(kind.flat->begin);
  mix(static_cast<uint64_t>(kind.from));
  mix(static_cast<uint64_t>(kind.to));
  mix(kind.swap);
  mix(static_cast<uint64_t>(kind.negate));
  for (const uint64_t size : *kind.shape) mix(size);
  for (const Piece* piece : kind.pieces) {
    for (const uint64_t offset : piece->box.offsets) mix(offset);
    for (const uint64_t extent : piece->box.extents) mix(extent);
    for (const uint64_t stride : piece->strides) mix(stride);
  }
  return hash;
}

// Adds copies of a kind's piece number `number`, from whose first byte they then count.
absl::Status AppendCopies(BoxCopies copies, const Piece& piece, size_t number,
                          std::vector<CopyOp>& all) {
  copies.first.file = static_cast<uint32_t>(number);
  copies.first.file_offset -= piece.offset;
  const size_t begin = all.size();
  if (begin == kMaxCopies) return TooManyCopies();
  all.push_back(copies.first);
  for (const Repeat& repeat : copies.repeats) {
    const size_t made = all.size() - begin;
    if (repeat.count > (kMaxCopies - begin) / made) return TooManyCopies();
    all.reserve(begin + made * repeat.count);
    for (uint64_t step = 1; step < repeat.count; ++step) {
      for (size_t i = 0; i < made; ++i) {
        CopyOp again = all[begin + i];
        again.file_offset += step * repeat.file_stride;
        again.slab_offset += step * repeat.slab_stride;
        all.push_back(again);
      }
    }
  }
  return absl::OkStatus();
}

// Boxes are disjoint and make up the `local_elements` of the part, pieces are disjoint;
// so every element is written exactly once if and only if the counts agree.
absl::Status AddCopies(const TensorKind& kind, const LocalGeometry& geometry,
                       uint64_t local_elements, Part& part) {
  uint64_t wanted_elements = 0;
  uint64_t written_elements = 0;
  for (const PlacedBox& placed : geometry.boxes) {
    wanted_elements += ElementCount(placed.global.extents);
    for (size_t number = 0; number < kind.pieces.size(); ++number) {
      const Piece& piece = *kind.pieces[number];
      const auto shared = Intersection(piece.box, placed.global);
      if (!shared.has_value()) continue;
      written_elements += ElementCount(shared->extents);
      CKPTD_ASSIGN_OR_RETURN(
          BoxCopies copies,
          CopiesOfBox(*shared, piece, placed, geometry.local_shape, kind.from, kind.to));
      copies.first.swap = kind.swap;
      copies.first.negate = kind.negate;
      CKPTD_RETURN_IF_ERROR(AppendCopies(std::move(copies), piece, number, part.copies));
    }
  }
  if (wanted_elements == local_elements && written_elements == local_elements) {
    return absl::OkStatus();
  }
  return NotCovered(fmt::format("its {} elements on this rank would get {} from the files; the "
                                "source does not hold the whole tensor exactly once",
                                local_elements, written_elements));
}

absl::Status NoWholeBytes(uint64_t elements, Dtype dtype) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                   fmt::format("its part on this rank is {} elements of {}, which is no whole "
                               "number of bytes below 2^64",
                               elements, NameOf(dtype)));
}

// Joins copies of one run each that follow each other on both sides.
void JoinRuns(std::vector<CopyOp>& copies) {
  size_t last = 0;
  for (size_t i = 1; i < copies.size(); ++i) {
    CopyOp& before = copies[last];
    const CopyOp& next = copies[i];
    if (before.dims == 0 && next.dims == 0 && before.file == next.file &&
        before.file_end() == next.file_offset &&
        before.slab_offset + before.target_bytes() == next.slab_offset) {
      before.run_bytes += next.run_bytes;
    } else {
      copies[++last] = next;
    }
  }
  if (!copies.empty()) copies.resize(last + 1);
}

// What the rank's run of a flat parameter has of a member.
absl::StatusOr<Part> FlatPartOf(const TensorKind& kind, const FlatRun& run) {
  const uint64_t elements = *CheckedElements(*kind.shape);
  const uint64_t member_end = kind.flat->begin + elements;
  const uint64_t begin = std::clamp(run.begin, kind.flat->begin, member_end) - kind.flat->begin;
  const uint64_t end = std::clamp(run.end, kind.flat->begin, member_end) - kind.flat->begin;
  const uint32_t bits = BitsOf(kind.to);
  const uint64_t before = begin < end ? begin + kind.flat->begin - run.begin : 0;
  const auto skipped = CheckedBytes(begin, bits);
  const auto bytes = CheckedBytes(end - begin, bits);
  const auto offset = CheckedBytes(before, bits);
  if (!skipped.has_value() || !bytes.has_value() || !offset.has_value() ||
      !CheckedBytes(elements, bits).has_value()) {
    return NoWholeBytes(end - begin, kind.to);
  }
  Part part;
  part.shape = {end - begin};
  part.bytes = part.padded_bytes = *bytes;
  part.flat_offset = *offset;
  // As if the whole tensor were local: the part begins so many bytes later.
  LocalGeometry geometry;
  geometry.local_shape = *kind.shape;
  for (Box& box : BoxesOfRange(*kind.shape, begin, end)) {
    Shape local = box.offsets;
    geometry.boxes.push_back({std::move(box), std::move(local)});
  }
  CKPTD_RETURN_IF_ERROR(AddCopies(kind, geometry, end - begin, part));
  for (CopyOp& copy : part.copies) copy.slab_offset -= *skipped;
  JoinRuns(part.copies);
  return part;
}

}  // namespace

FilePlace PlaceOf(const TensorEntry& source) {
  FilePlace first{std::numeric_limits<uint32_t>::max(), std::numeric_limits<uint64_t>::max()};
  for (const Piece& piece : source.pieces) {
    first = std::min(first, FilePlace{piece.file, piece.offset});
  }
  return first;
}

absl::Status TooManyCopies() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                   fmt::format("the layout scatters this rank's tensors into more than {} copies; "
                               "use fewer boxes or smaller split factors",
                               kMaxCopies));
}

absl::StatusOr<Part> PartOf(const TensorKind& kind, const std::vector<Mesh>& meshes,
                            uint32_t rank) {
  if (kind.flat.has_value()) {
    CKPTD_ASSIGN_OR_RETURN(const FlatRun run,
                           RunOf(*kind.sharding, meshes, kind.flat->elements, rank));
    return FlatPartOf(kind, run);
  }
  CKPTD_ASSIGN_OR_RETURN(LocalGeometry geometry,
                         ResolveSharding(*kind.sharding, meshes, *kind.shape, rank));
  const uint32_t bits = BitsOf(kind.to);
  const uint64_t elements = *CheckedElements(geometry.local_shape);
  const auto bytes = CheckedBytes(elements, bits);
  const auto padded_bytes = CheckedBytes(geometry.padded_elements, bits);
  if (!bytes.has_value() || !padded_bytes.has_value()) return NoWholeBytes(elements, kind.to);
  Part part;
  part.bytes = *bytes;
  part.padded_bytes = *padded_bytes;
  CKPTD_RETURN_IF_ERROR(AddCopies(kind, geometry, elements, part));
  part.shape = std::move(geometry.local_shape);
  return part;
}

absl::StatusOr<uint32_t> KindTable::Add(const ResolvedTarget& wanted, std::vector<FilePlace>& places) {
  candidate_.sharding = wanted.sharding;
  candidate_.flat.reset();
  if (wanted.flat.has_value()) {
    candidate_.flat = {wanted.flat->begin, layout_.flats[wanted.flat->flat].elements};
  }
  candidate_.shape = &wanted.source->shape;
  candidate_.from = wanted.source->dtype;
  candidate_.to = wanted.dtype;
  candidate_.swap = wanted.source->big_endian ? NumberBytesOf(wanted.source->dtype) : 1;
  candidate_.negate = SignsOf(*wanted.source);
  candidate_.pieces.clear();
  for (const Piece& piece : wanted.source->pieces) {
    CKPTD_RETURN_IF_ERROR(CheckPiece(piece, *wanted.source, index_));
    if (piece.bytes == 0) continue;
    candidate_.pieces.push_back(&piece);
    places.push_back({piece.file, piece.offset});
  }
  // Neighbours are mostly alike.
  if (last_ < kinds_.size() && SameKind(kinds_[last_], candidate_)) return last_;
  const size_t hash = HashOf(candidate_);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (SameKind(kinds_[it->second], candidate_)) return last_ = it->second;
  }
  CKPTD_RETURN_IF_ERROR(CheckDisjoint(candidate_));
  last_ = static_cast<uint32_t>(kinds_.size());
  kinds_.push_back(candidate_);
  by_hash_.emplace(hash, last_);
  return last_;
}

}  // namespace ckptd
