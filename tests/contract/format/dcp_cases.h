// The contract's tensors as torch distributed checkpoints.
#ifndef CKPTD_TESTS_CONTRACT_FORMAT_DCP_CASES_H_
#define CKPTD_TESTS_CONTRACT_FORMAT_DCP_CASES_H_

#include <string>
#include <vector>

#include "tests/contract/format/format_contract.h"
#include "tests/testing/dcp_writer.h"

namespace ckptd {

// Each tensor in two chunks by rows; those of the second one lie column by column. Of one of them
// a chunk is empty, and one tensor has no elements at all.
inline DcpWriter DcpOf(const std::vector<TensorOfFormat>& tensors) {
  DcpWriter writer;
  // The last items of both files are of the first tensor, which has elements.
  for (auto at = tensors.rbegin(); at != tensors.rend(); ++at) {
    const TensorOfFormat& tensor = *at;
    const uint64_t rows = tensor.shape[0];
    const uint64_t columns = tensor.shape[1];
    const uint64_t upper = rows / 2;
    const size_t element = BitsOf(tensor.dtype) / 8;
    const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()),
                            tensor.bytes.size());
    const DcpChunk first = {"__0_0.distcp", {0, 0}, {upper, columns},
                            bytes.substr(0, upper * columns * element)};
    DcpChunk second = {"__1_0.distcp", {upper, 0}, {rows - upper, columns}, "",
                       {1, rows - upper}};
    for (uint64_t column = 0; column < columns; ++column) {
      for (uint64_t row = upper; row < rows; ++row) {
        second.bytes += bytes.substr((row * columns + column) * element, element);
      }
    }
    writer.AddTensor("model." + tensor.name, {"model", tensor.name}, tensor.dtype, tensor.shape,
                     {first, second});
  }
  return writer;
}

inline std::string WriteDcp(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  DcpOf(tensors).Write(storage, "/d");
  return "/d";
}

// As accelerate's save_state.
inline std::string WriteAccelerate(MemoryStorage& storage,
                                   const std::vector<TensorOfFormat>& tensors) {
  DcpOf(tensors).Write(storage, "/a/pytorch_model_fsdp_0");
  storage.Write("/a/random_states_0.pkl", "...");
  return "/a";
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_FORMAT_DCP_CASES_H_
