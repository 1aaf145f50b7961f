#include "common/source/together.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/registry.h"

namespace ckptd {
namespace {

constexpr std::string_view kAll = "all";
constexpr std::string_view kModel = "model";
constexpr std::string_view kOptimizer = "optimizer";
constexpr auto kParts = std::to_array<std::string_view>({kModel, kOptimizer, "extra"});

struct Part {
  const CheckpointFormat* format = nullptr;
  Listing listing;
};

// As other formats than `self` recognise them.
std::vector<Part> PartsOf(const CheckpointFormat& self, const Storage& storage,
                          const Listing& listing) {
  std::vector<Part> parts;
  if (!listing.is_folder) return parts;
  const auto formats = Formats().first(Formats().size() - 1);  // the last one takes everything
  for (const std::string_view part : kParts) {
    Listing one = listing;
    one.part = part;
    const auto format = std::find_if(formats.begin(), formats.end(), [&](const auto* candidate) {
      return candidate != &self && candidate->Recognise(storage, one);
    });
    if (format != formats.end()) parts.push_back({*format, std::move(one)});
  }
  return parts;
}

absl::StatusOr<std::vector<Part>> AllParts(const CheckpointFormat& self, const Storage& storage,
                                           const Listing& listing) {
  std::vector<Part> parts = PartsOf(self, storage, listing);
  if (listing.part == kAll && parts.size() > 1) return parts;
  std::vector<std::string_view> names;
  for (const Part& part : parts) names.push_back(part.listing.part);
  names.push_back(kAll);
  return NoSuchPart(listing, names);
}

// Moves what a part holds into the whole.
class Whole {
 public:
  void Add(const Part& part, OpenedCheckpoint opened) {
    prefix_ = PrefixOf(part.listing.part, opened.index);
    AddFiles(opened.index);
    AddTensors(part.listing.part, opened.index);
    for (const auto& [alias, name] : opened.index.aliases) {
      out_.index.aliases.emplace(prefix_ + alias, prefix_ + name);
    }
    for (auto& [name, value] : opened.index.values) {
      out_.index.values.emplace(prefix_ + name, std::move(value));
    }
    for (auto& [name, what] : opened.index.opaque) {
      out_.index.opaque.emplace(prefix_ + name, std::move(what));
    }
    out_.index.metadata.merge(opened.index.metadata);
    std::move(opened.remarks.begin(), opened.remarks.end(), std::back_inserter(out_.remarks));
    parts_.push_back(fmt::format("{} ({})", part.listing.part, part.format->name()));
  }

  absl::StatusOr<OpenedCheckpoint> Finish(const Listing& listing) {
    if (out_.index.values.size() + out_.index.opaque.size() > kMaxSourceValues) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                       fmt::format("opening {}: its parts hold more than {} values that are no "
                                   "tensors; load one of them",
                                   listing.source, kMaxSourceValues),
                       {{"file", listing.source}});
    }
    out_.remarks.push_back(fmt::format("put together its parts {}", fmt::join(parts_, ", ")));
    CKPTD_RETURN_IF_ERROR(FinishTensors(out_.index));
    return std::move(out_);
  }

 private:
  static std::string PrefixOf(std::string_view part, const CheckpointIndex& index) {
    const bool has_names = std::all_of(
        index.tensors.begin(), index.tensors.end(),
        [](const TensorEntry& tensor) { return tensor.name.starts_with(kOptimizer); });
    if (part == kModel) return "model.";
    return part == kOptimizer && !has_names ? "optimizer." : "";
  }

  void AddFiles(CheckpointIndex& index) {
    numbers_.clear();
    for (SourceFile& file : index.files) {
      const auto [at, is_new] = by_path_.emplace(file.path, out_.index.files.size());
      numbers_.push_back(at->second);
      if (is_new) out_.index.files.push_back(std::move(file));
    }
  }

  void AddTensors(const std::string& part, CheckpointIndex& index) {
    std::vector<uint32_t> groups;
    for (size_t i = 0; i < index.groups.size(); ++i) {
      // Tensors of no group of their part belong to the part.
      std::string group = index.groups[i].empty() && part != kModel ? part : index.groups[i];
      auto at = std::find(out_.index.groups.begin(), out_.index.groups.end(), group);
      if (at == out_.index.groups.end()) at = out_.index.groups.insert(at, std::move(group));
      groups.push_back(static_cast<uint32_t>(at - out_.index.groups.begin()));
    }
    for (TensorEntry& tensor : index.tensors) {
      tensor.name.insert(0, prefix_);
      tensor.group = groups[tensor.group];
      for (Piece& piece : tensor.pieces) piece.file = numbers_[piece.file];
      out_.index.tensors.push_back(std::move(tensor));
    }
  }

  OpenedCheckpoint out_;
  std::string prefix_;
  std::map<std::string, uint32_t> by_path_;
  std::vector<uint32_t> numbers_;  // of a part's files in the whole
  std::vector<std::string> parts_;
};

}  // namespace

bool TogetherFormat::Recognise(const Storage& storage, const Listing& listing) const {
  return !listing.part.empty() && PartsOf(*this, storage, listing).size() > 1;
}

absl::Status TogetherFormat::Check(const Storage& storage, const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<Part> parts, AllParts(*this, storage, listing));
  for (const Part& part : parts) {
    CKPTD_RETURN_IF_ERROR(part.format->Check(storage, part.listing));
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenedCheckpoint> TogetherFormat::ReadIndex(const Storage& storage,
                                                           const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<Part> parts, AllParts(*this, storage, listing));
  Whole whole;
  for (const Part& part : parts) {
    CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, part.format->ReadIndex(storage, part.listing));
    whole.Add(part, std::move(opened));
  }
  return whole.Finish(listing);
}

absl::StatusOr<bool> TogetherFormat::StillMeans(const Storage& storage, const Listing& listing,
                                                const std::vector<SourceFile>& files) const {
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint opened, ReadIndex(storage, listing));
  const std::vector<SourceFile>& now = opened.index.files;
  return std::equal(
      files.begin(), files.end(), now.begin(), now.end(),
      [](const SourceFile& a, const SourceFile& b) { return a.path == b.path; });
}

}  // namespace ckptd
