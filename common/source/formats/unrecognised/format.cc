#include "common/source/formats/unrecognised/format.h"

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/unrecognised/folder.h"
#include "common/source/formats/unrecognised/object.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

absl::Status NoSuchPart(const Listing& listing) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: no format that is read finds a part {} there; leave off "
                               "what follows the \"#\"",
                               listing.source, Quoted(listing.part)),
                   {{"file", listing.source}});
}

}  // namespace

bool UnrecognisedFormat::Recognise(const Storage& /*storage*/, const Listing& /*listing*/) const {
  return true;
}

absl::Status UnrecognisedFormat::Check(const Storage& storage, const Listing& listing) const {
  if (!listing.part.empty() && listing.part != "model") return NoSuchPart(listing);
  const absl::Status why = listing.is_folder
                               ? unrecognised::WhyNoCheckpoint(storage, listing)
                               : unrecognised::WhyNoCheckpoint(storage, listing.source);
  return FactsOf(why).contains("file") ? why : WithFact(why, "file", listing.source);
}

absl::StatusOr<OpenedCheckpoint> UnrecognisedFormat::ReadIndex(const Storage& storage,
                                                               const Listing& listing) const {
  return Check(storage, listing);
}

absl::StatusOr<bool> UnrecognisedFormat::StillMeans(
    const Storage& storage, const Listing& listing,
    const std::vector<SourceFile>& /*files*/) const {
  return Check(storage, listing);
}

}  // namespace ckptd
