#include "server/rpc/inspect_page.h"

#include "common/base/status.h"
#include "common/checkpoint/path_text.h"
#include "common/plan/plan.h"
#include "server/rpc/call.h"

namespace ckptd {
namespace {

constexpr size_t kPageBytes = size_t{1} << 20;

void AddFirstPageFacts(const CheckpointIndex& index, v1::InspectCheckpointResponse& out) {
  for (const SourceFile& file : index.files) {
    auto* one = out.add_files();
    one->set_path(TextOfPath(file.path));
    one->set_bytes(file.bytes);
  }
  out.mutable_metadata()->insert(index.metadata.begin(), index.metadata.end());
  for (const auto& [alias, target] : index.aliases) {
    out.mutable_tensors()->add_alias_names(alias);
    out.mutable_tensors()->add_alias_targets(target);
  }
}

}  // namespace

absl::StatusOr<v1::InspectCheckpointResponse> InspectPage(const CheckpointIndex& index,
                                                          const std::string& page_token,
                                                          uint32_t page_size) {
  CKPTD_ASSIGN_OR_RETURN(const size_t begin, PositionFrom(page_token, index.tensors.size()));
  v1::InspectCheckpointResponse out;
  out.set_source(TextOfPath(index.source));
  out.set_source_identity(HexDigest(IdentityOf(index.files)));
  out.set_tensor_count(index.tensors.size());
  uint64_t total = 0;
  for (const TensorEntry& tensor : index.tensors) {
    for (const Piece& piece : tensor.pieces) total += piece.bytes;
  }
  out.set_tensor_bytes(total);
  if (begin == 0) AddFirstPageFacts(index, out);
  auto* table = out.mutable_tensors();
  size_t bytes = 0;
  size_t i = begin;
  for (; i < index.tensors.size(); ++i) {
    const TensorEntry& tensor = index.tensors[i];
    const size_t cost = tensor.name.size() + 40 + 10 * tensor.shape.size();
    if (i > begin && (bytes + cost > kPageBytes || (page_size > 0 && i - begin == page_size))) break;
    bytes += cost;
    table->add_names(tensor.name);
    table->add_dtypes(static_cast<v1::Dtype>(tensor.dtype));
    table->add_ranks_of_shape(static_cast<uint32_t>(tensor.shape.size()));
    table->mutable_dims()->Add(tensor.shape.begin(), tensor.shape.end());
    table->add_files(tensor.pieces.front().file);
    table->add_offsets(tensor.pieces.front().offset);
    table->add_bytes(tensor.pieces.front().bytes);
  }
  if (i < index.tensors.size()) out.set_next_page_token(std::to_string(i));
  return out;
}

}  // namespace ckptd
