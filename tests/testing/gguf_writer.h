// Writes GGUF files byte by byte, as https://github.com/ggml-org/ggml/blob/master/docs/gguf.md has
// them.
#ifndef CKPTD_TESTS_TESTING_GGUF_WRITER_H_
#define CKPTD_TESTS_TESTING_GGUF_WRITER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckptd {

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first
    uint32_t type = 0;
    std::string bytes;
  };

  explicit GgufWriter(bool big_endian = false) : big_endian_(big_endian) {}

  // Types of values as the format numbers them.
  GgufWriter& Pair(std::string_view key, uint32_t type, std::string_view value) {
    ++pairs_count_;
    pairs_ += Text(key) + Number(type) + std::string(value);
    return *this;
  }
  GgufWriter& Add(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  // Where the data begins, and between tensors.
  GgufWriter& Align(uint32_t alignment) {
    alignment_ = alignment;
    return Pair("general.alignment", 4, Number(alignment));
  }

  template <typename T>
  std::string Number(T value) const {
    std::string out(sizeof value, '\0');
    std::memcpy(out.data(), &value, sizeof value);
    if (big_endian_) std::reverse(out.begin(), out.end());
    return out;
  }
  std::string Text(std::string_view text) const {
    return Number(uint64_t{text.size()}) + std::string(text);
  }

  std::string File(uint32_t version = 3) const {
    std::string out = "GGUF" + Number(version) + Number(uint64_t{tensors_.size()}) +
                      Number(pairs_count_) + pairs_;
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors_) {
      out += Text(tensor.name) + Number(static_cast<uint32_t>(tensor.dims.size()));
      for (const uint64_t dim : tensor.dims) out += Number(dim);
      out += Number(tensor.type) + Number(offset);
      offset = Aligned(offset + tensor.bytes.size());
    }
    for (const Tensor& tensor : tensors_) {
      out.resize(Aligned(out.size()), '\0');
      out += tensor.bytes;
    }
    return out;
  }

 private:
  uint64_t Aligned(uint64_t at) const { return (at + alignment_ - 1) / alignment_ * alignment_; }

  const bool big_endian_;
  uint32_t alignment_ = 32;
  uint64_t pairs_count_ = 0;
  std::string pairs_;
  std::vector<Tensor> tensors_;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_GGUF_WRITER_H_
