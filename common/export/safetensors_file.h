// Writes .safetensors files, byte for byte as safetensors' save_file writes them.
#ifndef CKPTD_COMMON_EXPORT_SAFETENSORS_FILE_H_
#define CKPTD_COMMON_EXPORT_SAFETENSORS_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/export/content.h"
#include "common/export/copy_tensor.h"

namespace ckptd {

// The longest header that the library takes; nobody could open a file with a longer one.
inline constexpr size_t kMaxWrittenHeader = 100'000'000;

// OK if such a file can hold this tensor. Errors: Unimplemented TARGET_INVALID for a dtype that it
// does not have, and for a name that it keeps for itself or that is no text; fact "tensor".
absl::Status CheckForSafetensors(const OutTensor& tensor);

// The order in which save_file writes tensors: by dtype, wide ones first, then by name.
void SortForSafetensors(std::vector<const OutTensor*>& tensors);

// The first bytes of a file, up to its tensors, which follow in this order without gaps; metadata by
// key, where save_file has no order. Errors: InvalidArgument TARGET_INVALID above kMaxWrittenHeader.
absl::StatusOr<std::string> SafetensorsHeader(const std::vector<const OutTensor*>& tensors,
                                              const std::map<std::string, std::string>& metadata);

// The file is none until all of it is there: its header is written last. Blocking. Errors: those
// above and of TensorCopier.
absl::Status WriteSafetensors(const std::string& path, std::vector<const OutTensor*> tensors,
                              const std::map<std::string, std::string>& metadata,
                              TensorCopier& copier);

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_SAFETENSORS_FILE_H_
