#include "common/source/formats/deepspeed/partitions.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>

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

}  // namespace

absl::StatusOr<std::vector<Runs>> RunsOfGroup(const std::vector<Parameter>& parameters,
                                              const std::vector<uint64_t>& parts) {
  std::vector<Runs> out;
  uint32_t rank = 0;
  uint64_t at = 0;  // in the rank's part
  uint64_t used = 0;
  for (const Parameter& parameter : parameters) {
    Runs& runs = out.emplace_back();
    const uint64_t elements = ElementCount(parameter.shape);
    for (uint64_t left = elements; left > 0;) {
      while (rank < parts.size() && at == parts[rank]) {
        ++rank;
        at = 0;
      }
      if (rank == parts.size()) {
        return Invalid(fmt::format("the ranks' parts end before the last {} of {} elements of {}",
                                   left, elements, Quoted(parameter.name)),
                       parameter.name);
      }
      const uint64_t taken = std::min(left, parts[rank] - at);
      runs.push_back({rank, at, taken});
      at += taken;
      left -= taken;
    }
    used += elements;  // no more than `parts` have
  }
  uint64_t available = 0;
  for (const uint64_t part : parts) available = CheckedAdd(available, part).value_or(~uint64_t{0});
  if (IsPaddingBetween(used, available, parts.size())) return out;
  return Invalid(fmt::format("parameters have {} elements, and the ranks' parts have {}", used,
                             available));
}

absl::StatusOr<std::vector<Runs>> RunsByFragments(const std::vector<Parameter>& parameters,
                                                  const std::vector<uint64_t>& parts,
                                                  const std::vector<Fragments>& ranks) {
  std::vector<Runs> out(parameters.size());
  std::vector<uint64_t> left;
  std::unordered_map<std::string_view, size_t> numbers;
  for (const Parameter& parameter : parameters) {
    numbers.emplace(parameter.name, left.size());
    left.push_back(ElementCount(parameter.shape));
  }
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [name, fragment] : ranks[rank]) {
      const auto found = numbers.find(name);
      const auto& [begin, elements] = fragment;
      if (found == numbers.end() || elements == 0) continue;
      if (begin > parts[rank] || elements > parts[rank] - begin || elements > left[found->second]) {
        return Invalid(fmt::format("rank {} says that {} elements of {} begin at {}, which cannot "
                                   "be",
                                   rank, elements, Quoted(name), begin),
                       name);
      }
      out[found->second].push_back({rank, begin, elements});
      left[found->second] -= elements;
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (left[i] == 0) continue;
    return Invalid(fmt::format("no rank says that it has the last {} of {} elements of {}", left[i],
                               ElementCount(parameters[i].shape), Quoted(parameters[i].name)),
                   parameters[i].name);
  }
  return out;
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
