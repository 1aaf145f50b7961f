#include "common/source/formats/deepspeed/flat_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/piece.h"
#include "common/source/text.h"

namespace ckptd::deepspeed {
namespace {

// Adds the boxes of elements [first, first + run.elements) of the entry.
absl::Status AddRun(uint64_t first, PartRun run, const FlatPart& part, TensorEntry& out) {
  const auto after = std::upper_bound(part.begins.begin(), part.begins.end(), run.begin);
  // The run lies in the part, whose first tensor begins at 0.
  auto at = static_cast<size_t>(after - part.begins.begin()) - 1;
  while (run.elements > 0) {
    const torch::Tensor& tensor = *part.tensors[at];
    const uint64_t end = at + 1 < part.begins.size() ? part.begins[at + 1] : ~uint64_t{0};
    const uint64_t taken = std::min(run.elements, end - run.begin);
    if (out.dtype != tensor.dtype || out.big_endian != part.big_endian) {
      return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                       fmt::format("parts of {} are {} and {}, or of several byte orders; the files "
                                   "are of different saves: save again",
                                   Quoted(out.name), NameOf(out.dtype), NameOf(tensor.dtype)),
                       {{"tensor", out.name}});
    }
    const uint64_t element = BitsOf(tensor.dtype) / 8;
    uint64_t offset = tensor.offset + (run.begin - part.begins[at]) * element;
    for (Box& box : BoxesOfRange(out.shape, first, first + taken)) {
      Piece& piece = out.pieces.emplace_back();
      piece.file = part.file;
      piece.offset = offset;
      piece.bytes = ElementCount(box.extents) * element;
      piece.box = std::move(box);
      offset += piece.bytes;
    }
    first += taken;
    run.begin += taken;
    run.elements -= taken;
    ++at;
  }
  return absl::OkStatus();
}

}  // namespace

FlatPart FlatPartOf(uint32_t file, bool big_endian,
                    const std::vector<const torch::Tensor*>& tensors,
                    const std::vector<uint64_t>& lengths) {
  FlatPart out{file, big_endian, {}, {}};
  uint64_t begin = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (lengths[i] == 0) continue;
    out.tensors.push_back(tensors[i]);
    out.begins.push_back(begin);
    begin += lengths[i];
  }
  return out;
}

absl::StatusOr<TensorEntry> EntryOfRuns(const Parameter& parameter, const Runs& runs,
                                        const std::vector<FlatPart>& parts) {
  TensorEntry out;
  out.name = parameter.name;
  out.shape = parameter.shape;
  if (runs.empty()) {  // it has no elements
    const bool has_others = !parts.empty() && !parts.front().tensors.empty();
    out.dtype = has_others ? parts.front().tensors.front()->dtype : Dtype::kF32;
    Piece& piece = out.pieces.emplace_back();
    piece.box = {Shape(out.shape.size(), 0), out.shape};
    return out;
  }
  const FlatPart& first_part = parts[runs.front().rank];
  out.dtype = first_part.tensors.front()->dtype;
  out.big_endian = first_part.big_endian;
  uint64_t first = 0;
  for (const PartRun& run : runs) {
    CKPTD_RETURN_IF_ERROR(AddRun(first, run, parts[run.rank], out));
    first += run.elements;
  }
  return out;
}

}  // namespace ckptd::deepspeed
