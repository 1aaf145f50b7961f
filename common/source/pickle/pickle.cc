#include "common/source/pickle/pickle.h"

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/pickle/interpreter.h"

namespace ckptd::pickle {

absl::StatusOr<Parsed> Parse(std::span<const std::byte> bytes, const Limits& limits) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return Interpreter(text, limits).Run();
}

absl::Status CheckBegin(std::span<const std::byte> begin) {
  Limits limits;
  limits.pickle_bytes = begin.size() - 1;
  const absl::Status status = Parse(begin, limits).status();
  if (status.ok()) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                     "its pickle is much shorter than what holds it; save or copy it again");
  }
  // One that needs what is not here passes a limit.
  return absl::IsInvalidArgument(status) ? absl::OkStatus() : status;
}

}  // namespace ckptd::pickle
