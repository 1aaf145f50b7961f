// Sources of the formats that are folders of several files, and of GGUF.
#ifndef CKPTD_TESTS_CONTRACT_FORMAT_FOLDERS_CASES_H_
#define CKPTD_TESTS_CONTRACT_FORMAT_FOLDERS_CASES_H_

#include <map>
#include <string>
#include <vector>

#include "tests/contract/format/format_contract.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/memory_storage.h"

namespace ckptd {

inline std::string TextOf(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string WriteOffload(MemoryStorage& storage,
                                const std::vector<TensorOfFormat>& tensors) {
  static const std::map<Dtype, std::string> kNumpy = {{Dtype::kF32, "float32"},
                                                      {Dtype::kBF16, "bfloat16"},
                                                      {Dtype::kU8, "uint8"},
                                                      {Dtype::kI64, "int64"},
                                                      {Dtype::kF64, "float64"}};
  std::string index;
  for (const TensorOfFormat& tensor : tensors) {
    index += (index.empty() ? "{\"" : ", \"") + tensor.name + R"(": {"dtype": ")" +
             kNumpy.at(tensor.dtype) + R"(", "shape": [)" + std::to_string(tensor.shape[0]) + ", " +
             std::to_string(tensor.shape[1]) + "]}";
    storage.Write("/o/" + tensor.name + ".dat", TextOf(tensor.bytes));
  }
  storage.Write("/o/index.json", index + "}");
  return "/o";
}

inline std::string WriteGguf(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  static const std::map<Dtype, uint32_t> kTypes = {
      {Dtype::kF32, 0}, {Dtype::kBF16, 30}, {Dtype::kI64, 27}, {Dtype::kF64, 28}};
  GgufWriter writer;
  for (const TensorOfFormat& tensor : tensors) {
    writer.Add({tensor.name,
                {tensor.shape[1], tensor.shape[0]},
                kTypes.at(tensor.dtype),
                TextOf(tensor.bytes)});
  }
  storage.Write("/g/model.gguf", writer.File());
  return "/g/model.gguf";
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_FORMAT_FOLDERS_CASES_H_
