// Short spellings for tests of OpenCheckpoint.
#ifndef CKPTD_TESTS_UNIT_COMMON_SOURCE_OPEN_HELPERS_H_
#define CKPTD_TESTS_UNIT_COMMON_SOURCE_OPEN_HELPERS_H_

#include <fmt/format.h>

#include <string>
#include <vector>

#include "common/source/index.h"
#include "tests/unit/common/source/file_bytes.h"

namespace ckptd {

// The tensors' names, in order.
inline std::vector<std::string> NamesOf(const CheckpointIndex& index) {
  std::vector<std::string> names;
  for (const TensorEntry& tensor : index.tensors) names.push_back(tensor.name);
  return names;
}

// The path of the file that holds a tensor.
inline std::string FileOf(const CheckpointIndex& index, const std::string& tensor) {
  return index.files[index.Find(tensor)->pieces[0].file].path;
}

// An index with these entries.
inline std::string IndexOf(const std::string& entries) {
  return "{\"weight_map\":{" + entries + "}}";
}

// A file with two U8 tensors of one byte.
inline std::string TwoTensors(const std::string& first, const std::string& second) {
  return FileBytes(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},)"
                               R"("{}":{{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}}})",
                               first, second),
                   "xy");
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_UNIT_COMMON_SOURCE_OPEN_HELPERS_H_
