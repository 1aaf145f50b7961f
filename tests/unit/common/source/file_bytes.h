// The bytes of safetensors files, as tests write them.
#ifndef CKPTD_TESTS_UNIT_COMMON_SOURCE_FILE_BYTES_H_
#define CKPTD_TESTS_UNIT_COMMON_SOURCE_FILE_BYTES_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace ckptd {

// A whole safetensors file: the length, `json` as it is, `data`.
inline std::string FileBytes(std::string_view json, std::string_view data) {
  std::string out;
  for (uint64_t rest = json.size(), i = 0; i < 8; ++i, rest >>= 8) {
    out.push_back(static_cast<char>(rest & 0xff));
  }
  return out.append(json).append(data);
}

// A file with one U8 tensor of one byte.
inline std::string OneTensor(const std::string& name, const std::string& metadata = {}) {
  const std::string extra = metadata.empty() ? "" : "\"__metadata__\":" + metadata + ",";
  return FileBytes(
      "{" + extra + "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
      "x");
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_UNIT_COMMON_SOURCE_FILE_BYTES_H_
