// Reads pickles of protocols 0 to 5 without running anything: "inert, not closed". Pure.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_PICKLE_H_
#define CKPTD_COMMON_SOURCE_PICKLE_PICKLE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/pickle/value.h"

namespace ckptd::pickle {

// Ours: bounds on what a hostile pickle can cost. Each is far above what real checkpoints hold.
struct Limits {
  size_t pickle_bytes = size_t{1} << 30;
  size_t values = 20'000'000;
  size_t depth = 2'000;  // of marks that are open at once
  size_t memo = 10'000'000;
  size_t text_bytes = size_t{64} << 20;  // of one text, or of one bytes object
  size_t number_bytes = 1'024;           // of one whole number
  size_t total_bytes = size_t{2} << 30;  // of memory for all of it
  // What the pickle takes in its file, where it is packed there. Memory grows with it, or with the
  // pickle's length if that is less: real values take a few bytes for each.
  size_t stored_bytes = SIZE_MAX;
};

struct Parsed {
  Document document;
  size_t bytes = 0;  // of the pickle, up to and with its STOP
};

// Reads the pickle that `bytes` begin with; more may follow. Time and memory are linear in its
// length. Errors, their sentences begin in the middle ("its pickle ..."): DataLoss SOURCE_INVALID
// (fact "offset") for what is no pickle or breaks off; InvalidArgument SOURCE_INVALID where a limit
// is passed; Unimplemented SOURCE_UNSUPPORTED for extension codes, buffers outside of the pickle
// and later protocols; PermissionDenied SOURCE_UNSAFE (fact "calls") for a pickle that would call
// what executes something, such as os.system.
absl::StatusOr<Parsed> Parse(std::span<const std::byte> bytes, const Limits& limits = {});

// Files can be long and take no room on a disk: of longer pickles the begin is read first.
inline constexpr size_t kLongPickle = size_t{32} << 20;
// OK if the pickle that begins so can go on behind it. Errors: those of Parse.
absl::Status CheckBegin(std::span<const std::byte> begin);

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_PICKLE_H_
