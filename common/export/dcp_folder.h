// Writes folders of torch's distributed checkpoint (DCP), as dcp.save of one process writes them.
#ifndef CKPTD_COMMON_EXPORT_DCP_FOLDER_H_
#define CKPTD_COMMON_EXPORT_DCP_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/export/content.h"
#include "common/export/copy_tensor.h"

namespace ckptd {

inline constexpr char kDcpFile[] = "__0_0.distcp";
inline constexpr char kDcpMetadata[] = ".metadata";

// One name of a checkpoint, and where its bytes lie in kDcpFile.
struct DcpItem {
  std::string name;
  const OutTensor* tensor = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// The pickle that dcp.load begins with. Objects (EntryKind::kObject) become entries of bytes, tensors
// become one chunk each.
std::string DcpMetadata(const std::vector<DcpItem>& items);

// Writes both files into a folder: `file` and `metadata` are their paths. Tied names share their
// bytes. Without the metadata, which comes last, there is no checkpoint. Blocking. Errors: those of
// CheckForTorch and of TensorCopier.
absl::Status WriteDcp(const std::string& file, const std::string& metadata, const Content& content,
                      TensorCopier& copier);

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_DCP_FOLDER_H_
