#include "common/source/formats/unrecognised/format.h"

#include "common/base/status.h"
#include "common/source/formats/unrecognised/folder.h"
#include "common/source/formats/unrecognised/object.h"

namespace ckptd {

bool UnrecognisedFormat::Recognise(const Storage& /*storage*/, const Listing& /*listing*/) const {
  return true;
}

absl::Status UnrecognisedFormat::Check(const Storage& storage, const Listing& listing) const {
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
