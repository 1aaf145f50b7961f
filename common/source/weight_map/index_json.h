// *.index.json: which file holds which tensor. Pure: no I/O.
#ifndef CKPTD_COMMON_SOURCE_WEIGHT_MAP_INDEX_JSON_H_
#define CKPTD_COMMON_SOURCE_WEIGHT_MAP_INDEX_JSON_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ckptd {

// Ours: the largest published indices have a few megabytes.
inline constexpr size_t kMaxIndexJsonBytes = 100'000'000;

// The fact "error" of an object that lists no files in any way.
inline constexpr char kNoWeightMap[] = "NoWeightMap";

struct IndexJson {
  // Tensor -> file, relative to the folder of the index: without "." and "..",
  // never absolute, with the extension that was asked for.
  std::map<std::string, std::string> weight_map;
  // The string entries of "metadata": among others the names of removed
  // duplicates -> the name that was kept.
  std::map<std::string, std::string> metadata;
  std::vector<std::string> remarks;  // sentences for people: what is wrong with it, and does no harm
};

// Parses {"metadata": {...}, "weight_map": {tensor: file}} or a bare {tensor: file}. Errors,
// without the index's own path: InvalidArgument SOURCE_INVALID (not such JSON, an unsafe file
// name), Unimplemented SOURCE_UNSUPPORTED (it lists files of another extension). Facts "shard" and
// "tensor" where there is one to blame.
absl::StatusOr<IndexJson> ParseIndexJson(std::string_view json,
                                         std::string_view extension = ".safetensors");

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_WEIGHT_MAP_INDEX_JSON_H_
