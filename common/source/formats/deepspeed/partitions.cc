#include "common/source/formats/deepspeed/partitions.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common/base/checked_math.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/piece.h"
#include "common/source/text.h"

namespace ckptd::deepspeed {
namespace {

absl::Status Invalid(const std::string& why, const std::string& tensor = {}) {
  Facts facts;
  if (!tensor.empty()) facts["tensor"] = tensor.substr(0, 4096);
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   why + "; the files are of different saves, or damaged: save again", facts);
}

// Whether two lengths may be one but for the padding of a group to multiples of twice the number of
// ranks.
bool IsPaddingBetween(uint64_t used, uint64_t available, uint64_t ranks) {
  return available >= used && CeilDivide(used, 2 * ranks) == CeilDivide(available, 2 * ranks);
}

// Takes elements of ranks' parts, one behind the other.
class Taker {
 public:
  explicit Taker(const std::vector<uint64_t>& parts) : parts_(parts) {}

  uint64_t taken() const { return taken_; }

  // Adds where the next elements are to `runs`, if there is one. Returns how many are lacking.
  uint64_t Take(uint64_t elements, Runs* runs) {
    while (elements > 0) {
      while (rank_ < parts_.size() && at_ == parts_[rank_]) {
        ++rank_;
        at_ = 0;
      }
      if (rank_ == parts_.size()) break;
      const uint64_t some = std::min(elements, parts_[rank_] - at_);
      if (runs != nullptr) runs->push_back({rank_, at_, some});
      at_ += some;
      taken_ += some;
      elements -= some;
    }
    return elements;
  }

 private:
  const std::vector<uint64_t>& parts_;
  uint32_t rank_ = 0;
  uint64_t at_ = 0;  // in the rank's part
  uint64_t taken_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Runs>> RunsOfGroup(const std::vector<Parameter>& parameters,
                                              const std::vector<uint64_t>& parts,
                                              const std::vector<uint64_t>& paddings) {
  if (!paddings.empty() && paddings.size() != parameters.size()) {
    return Invalid(fmt::format("a group has {} parameters, and paddings of {}", parameters.size(),
                               paddings.size()));
  }
  std::vector<Runs> out;
  Taker taker(parts);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const uint64_t elements = ElementCount(parameter.shape);
    const uint64_t left = taker.Take(elements, &out.emplace_back());
    if (left > 0) {
      return Invalid(fmt::format("the ranks' parts end before the last {} of {} elements of {}",
                                 left, elements, Quoted(parameter.name)),
                     parameter.name);
    }
    if (paddings.empty()) continue;
    if (taker.Take(paddings[i], nullptr) > 0) {
      return Invalid(fmt::format("the ranks' parts end in the padding behind {}",
                                 Quoted(parameter.name)),
                     parameter.name);
    }
  }
  uint64_t available = 0;
  for (const uint64_t part : parts) available = CheckedAdd(available, part).value_or(~uint64_t{0});
  if (IsPaddingBetween(taker.taken(), available, parts.size())) return out;
  return Invalid(fmt::format("parameters have {} elements, and the ranks' parts have {}",
                             taker.taken(), available));
}

absl::StatusOr<std::vector<Runs>> RunsOfStage3(const std::vector<Parameter>& parameters,
                                               uint64_t part, uint32_t ranks) {
  std::vector<Runs> out;
  uint64_t at = 0;
  size_t count = 0;
  for (const Parameter& parameter : parameters) {
    Runs& runs = out.emplace_back();
    uint64_t left = ElementCount(parameter.shape);
    const uint64_t each = CeilDivide(left, ranks);
    if (each > part - at) {
      return Invalid(fmt::format("each rank's part of {} elements ends before its {} elements of {}",
                                 part, each, Quoted(parameter.name)),
                     parameter.name);
    }
    for (uint32_t rank = 0; rank < ranks && left > 0; ++rank) {
      const uint64_t taken = std::min(left, each);
      runs.push_back({rank, at, taken});
      left -= taken;
    }
    at += each;
    count += runs.size();
    if (count > kMaxSourcePieces) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                       fmt::format("its parameters lie in more than {} parts of ranks; merge them "
                                   "by DeepSpeed's zero_to_fp32",
                                   kMaxSourcePieces));
    }
  }
  if (at == part) return out;
  return Invalid(fmt::format("of each rank's part of {} elements the parameters take {}", part, at));
}

}  // namespace ckptd::deepspeed
