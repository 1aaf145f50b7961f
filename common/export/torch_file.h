// Writes files as torch.save writes them: a dict of tensors, which torch.load takes with
// weights_only=True.
#ifndef CKPTD_COMMON_EXPORT_TORCH_FILE_H_
#define CKPTD_COMMON_EXPORT_TORCH_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/export/content.h"
#include "common/export/copy_tensor.h"
#include "common/export/output_file.h"

namespace ckptd {

// OK if torch has this tensor's dtype. Errors: Unimplemented TARGET_INVALID, fact "tensor".
absl::Status CheckForTorch(const OutTensor& tensor);

// The dict has the tensors in this order, then their aliases, which share their storages. The file
// is none until all of it is there: its directory is written last. Blocking. Errors: those above
// and of TensorCopier.
absl::Status WriteTorchFile(const std::string& path, const std::vector<const OutTensor*>& tensors,
                            TensorCopier& copier);

// Appends one tensor as an archive of its own, as DCP keeps its items. Blocking. Errors as above.
absl::Status AppendTorchItem(const OutTensor& tensor, TensorCopier& copier, OutputFile& out);

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_TORCH_FILE_H_
