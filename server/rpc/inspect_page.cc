#include "server/rpc/inspect_page.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <string_view>

#include "common/base/status.h"
#include "common/plan/plan.h"
#include "common/source/path_text.h"
#include "common/wire/sendable_text.h"
#include "common/wire/source_table.h"
#include "server/rpc/call.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

constexpr size_t kPageBytes = size_t{1} << 20;
constexpr size_t kMostValueBytes = size_t{64} << 10;

using Texts = std::map<std::string, std::string>;

void AddFirstPageFacts(const CheckpointIndex& index, v1::SourceIndex& out) {
  out.set_format(index.format);
  for (const SourceFile& file : index.files) *out.add_files() = ToProto(file);
  out.mutable_metadata()->insert(index.metadata.begin(), index.metadata.end());
}

uint64_t BytesOf(const TensorEntry& tensor) {
  uint64_t bytes = 0;
  for (const Piece& piece : tensor.pieces) bytes += piece.bytes;
  return bytes;
}

// The room that a page has. The first thing on it always fits.
class Room {
 public:
  explicit Room(uint32_t page_size) : most_(page_size) {}

  bool Take(size_t bytes) {
    if (taken_ > 0 && (bytes_ + bytes > kPageBytes || (most_ > 0 && taken_ == most_))) return false;
    bytes_ += bytes;
    ++taken_;
    return true;
  }
  size_t taken() const { return taken_; }

 private:
  const size_t most_;
  size_t taken_ = 0;
  size_t bytes_ = 0;
};

// Those of the index that the page begins with or behind; true: it has room for more.
bool AddTensors(const CheckpointIndex& index, size_t begin, SourceTableWriter& table,
                v1::SourceTable& out, Room& room) {
  for (size_t i = begin; i < index.tensors.size(); ++i) {
    const TensorEntry& tensor = index.tensors[i];
    if (!room.Take(SourceTableWriter::CostOf(tensor))) return false;
    table.Add(tensor);
    out.add_bytes(BytesOf(tensor));
  }
  return true;
}

// Likewise of values or opaque things.
bool AddTexts(const Texts& texts, size_t begin, google::protobuf::Map<std::string, std::string>& out,
              Room& room) {
  for (auto at = std::next(texts.begin(), static_cast<ptrdiff_t>(std::min(begin, texts.size())));
       at != texts.end(); ++at) {
    const bool sent = at->second.size() <= kMostValueBytes;
    if (!room.Take(at->first.size() + (sent ? at->second.size() : 0))) return false;
    out[SendableText(at->first)] = sent ? SendableText(at->second) : "";
  }
  return true;
}

}  // namespace

absl::StatusOr<v1::InspectCheckpointResponse> InspectPage(const CheckpointIndex& index,
                                                          const std::string& page_token,
                                                          uint32_t page_size, bool values) {
  const size_t tensors = index.tensors.size();
  const size_t all = tensors + (values ? index.values.size() + index.opaque.size() : 0);
  CKPTD_ASSIGN_OR_RETURN(const size_t begin, PositionFrom(page_token, all));
  v1::InspectCheckpointResponse out;
  v1::SourceIndex& page = *out.mutable_index();
  page.set_source(TextOfPath(index.source));
  out.set_source_identity(HexDigest(IdentityOf(index.files)));
  out.set_tensor_count(tensors);
  out.set_value_count(index.values.size());
  out.set_opaque_count(index.opaque.size());
  uint64_t total = 0;
  for (const TensorEntry& tensor : index.tensors) total += BytesOf(tensor);
  out.set_tensor_bytes(total);
  SourceTableWriter table(index, *page.mutable_tensors());
  if (begin == 0) {
    AddFirstPageFacts(index, page);
    table.AddAliases();
  }
  Room room(page_size);
  const auto behind = [begin](size_t count) { return begin > count ? begin - count : 0; };
  if (AddTensors(index, begin, table, *page.mutable_tensors(), room) && values &&
      AddTexts(index.values, behind(tensors), *page.mutable_values(), room)) {
    AddTexts(index.opaque, behind(tensors + index.values.size()), *page.mutable_opaque(), room);
  }
  const size_t end = begin + room.taken();
  if (end < all) out.set_next_page_token(std::to_string(end));
  return out;
}

}  // namespace ckptd
