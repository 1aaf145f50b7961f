// What a folder holds, as far as checkpoints go.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FOLDER_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FOLDER_H_

#include <string>
#include <vector>

#include "common/source/format.h"

namespace ckptd {

// Names in one folder, each list sorted. Hidden files are left out.
struct FolderContents {
  std::vector<std::string> safetensors;  // *.safetensors
  std::vector<std::string> indices;      // *.safetensors.index.json
  std::vector<std::string> torch;        // *.bin, *.pt, *.pth, *.ckpt, *.bin.index.json
  bool has_config = false;               // config.json
};

// Sorts the files of a folder.
FolderContents ContentsOf(const Listing& listing);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FOLDER_H_
