// A format for tests: of every matrix the upper rows lie in one file in row-major order, the lower
// ones in another, column by column. "halves.txt" has a line for each: name, dtype, rows, columns,
// and where each part begins.
#ifndef CKPTD_TESTS_TESTING_HALVES_FORMAT_H_
#define CKPTD_TESTS_TESTING_HALVES_FORMAT_H_

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checked_math.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/format.h"
#include "common/source/piece.h"

namespace ckptd {

class HalvesFormat final : public CheckpointFormat {
 public:
  static constexpr char kList[] = "halves.txt";
  static constexpr size_t kMaxListBytes = 1 << 20;

  std::string_view name() const override { return "halves"; }
  bool Recognise(const Storage&, const Listing& listing) const override {
    return std::binary_search(listing.names.begin(), listing.names.end(), kList);
  }
  absl::Status Check(const Storage& storage, const Listing& listing) const override {
    return ReadIndex(storage, listing).status();
  }
  absl::StatusOr<OpenedCheckpoint> ReadIndex(const Storage& storage,
                                             const Listing& listing) const override {
    OpenedCheckpoint out;
    CheckpointIndex& index = out.index;
    index.source = listing.source;
    for (const char* file : {"/upper", "/lower"}) {
      CKPTD_ASSIGN_OR_RETURN(const Storage::Found found, storage.Stat(listing.source + file));
      index.files.push_back(found.identity);
    }
    const std::string path = listing.source + "/" + kList;
    CKPTD_ASSIGN_OR_RETURN(TextObject list, ReadText(storage, path, kMaxListBytes));
    std::istringstream lines(list.text);
    for (std::string line; std::getline(lines, line);) {
      CKPTD_RETURN_IF_ERROR(AddTensor(path, line, index));
    }
    if (!list.text.ends_with("end\n")) return Invalid(path, "it is cut off");
    std::sort(index.tensors.begin(), index.tensors.end(),
              [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
    index.files.push_back(std::move(list.identity));
    return out;
  }
  absl::StatusOr<bool> StillMeans(const Storage&, const Listing& listing,
                                  const std::vector<SourceFile>& files) const override {
    return files.back().path == listing.source + "/" + kList;
  }

 private:
  static absl::Status Invalid(const std::string& path, const std::string& why) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                     "reading " + path + ": " + why + "; write it again", {{"file", path}});
  }

  static absl::Status AddTensor(const std::string& path, const std::string& line,
                                CheckpointIndex& index) {
    if (line == "end") return absl::OkStatus();
    std::istringstream words(line);
    TensorEntry tensor;
    std::string dtype;
    uint64_t rows = 0;
    uint64_t columns = 0;
    uint64_t offsets[2] = {};
    words >> tensor.name >> dtype >> rows >> columns >> offsets[0] >> offsets[1];
    if (!words || !ParseDtype(dtype).has_value() || BitsOf(*ParseDtype(dtype)) % 8 != 0) {
      return Invalid(path, "a line is none");
    }
    tensor.dtype = *ParseDtype(dtype);
    tensor.shape = {rows, columns};
    const uint64_t upper = rows / 2;
    for (uint32_t half = 0; half < 2; ++half) {
      Piece piece;
      piece.file = half;
      piece.offset = offsets[half];
      piece.box = {{half == 0 ? 0 : upper, 0}, {half == 0 ? upper : rows - upper, columns}};
      const auto elements = CheckedElements(piece.box.extents);
      piece.bytes = elements.has_value()
                        ? CheckedBytes(*elements, BitsOf(tensor.dtype)).value_or(0)
                        : 0;
      if (half == 1) piece.strides = CompactStrides(piece.box.extents, {1, rows - upper});
      const auto why = WhyImpossible(piece, tensor, index.files[half].bytes);
      if (!why.empty()) {
        return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                         "reading " + tensor.name + ": " + std::string(why),
                         {{"file", index.files[half].path}});
      }
      tensor.pieces.push_back(std::move(piece));
    }
    index.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_HALVES_FORMAT_H_
