// What a folder holds, as far as checkpoints go.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FOLDER_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FOLDER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/source/format.h"
#include "common/source/storage.h"

namespace ckptd {

// Names in one folder, each list sorted. Hidden files are left out.
struct FolderContents {
  std::vector<std::string> safetensors;  // *.safetensors
  std::vector<std::string> indices;      // *.safetensors.index.json
  // Files of formats that are not read.
  std::vector<std::string> torch;  // *.bin, *.pt, *.pth, *.ckpt, *.bin.index.json
  std::vector<std::string> dcp;    // .metadata, *.distcp
  std::vector<std::string> gguf;   // *.gguf
  bool has_config = false;         // config.json
  bool has_snapshots = false;      // a folder "snapshots", as in a Hugging Face cache
};

// Sorts the files of a folder.
FolderContents ContentsOf(const Listing& listing);

// The error for a folder without safetensors: says what it holds instead and
// what to do about it. Looks at a few folders below.
absl::Status NothingToLoad(const Storage& storage, const std::string& folder,
                           const FolderContents& contents);

// For a file that is not safetensors: the error of another format, by its extension;
// OK for any other.
absl::Status CheckExtension(const std::string& path);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FOLDER_H_
