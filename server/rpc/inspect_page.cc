#include "server/rpc/inspect_page.h"

#include "common/base/status.h"
#include "common/plan/plan.h"
#include "common/source/path_text.h"
#include "common/wire/source_table.h"
#include "server/rpc/call.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

constexpr size_t kPageBytes = size_t{1} << 20;

void AddFirstPageFacts(const CheckpointIndex& index, v1::SourceIndex& out) {
  for (const SourceFile& file : index.files) *out.add_files() = ToProto(file);
  out.mutable_metadata()->insert(index.metadata.begin(), index.metadata.end());
}

uint64_t BytesOf(const TensorEntry& tensor) {
  uint64_t bytes = 0;
  for (const Piece& piece : tensor.pieces) bytes += piece.bytes;
  return bytes;
}

}  // namespace

absl::StatusOr<v1::InspectCheckpointResponse> InspectPage(const CheckpointIndex& index,
                                                          const std::string& page_token,
                                                          uint32_t page_size) {
  CKPTD_ASSIGN_OR_RETURN(const size_t begin, PositionFrom(page_token, index.tensors.size()));
  v1::InspectCheckpointResponse out;
  out.mutable_index()->set_source(TextOfPath(index.source));
  out.set_source_identity(HexDigest(IdentityOf(index.files)));
  out.set_tensor_count(index.tensors.size());
  uint64_t total = 0;
  for (const TensorEntry& tensor : index.tensors) total += BytesOf(tensor);
  out.set_tensor_bytes(total);
  v1::SourceTable& tensors = *out.mutable_index()->mutable_tensors();
  SourceTableWriter table(index, tensors);
  if (begin == 0) {
    AddFirstPageFacts(index, *out.mutable_index());
    table.AddAliases();
  }
  size_t bytes = 0;
  size_t i = begin;
  for (; i < index.tensors.size(); ++i) {
    const TensorEntry& tensor = index.tensors[i];
    const size_t cost = SourceTableWriter::CostOf(tensor);
    if (i > begin && (bytes + cost > kPageBytes || (page_size > 0 && i - begin == page_size))) break;
    bytes += cost;
    table.Add(tensor);
    tensors.add_bytes(BytesOf(tensor));
  }
  if (i < index.tensors.size()) out.set_next_page_token(std::to_string(i));
  return out;
}

}  // namespace ckptd
