// A small checkpoint on disk whose bytes a test can compute.
#ifndef CKPTD_TESTS_TESTING_SMALL_SOURCE_H_
#define CKPTD_TESTS_TESTING_SMALL_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/catalog/catalog.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {

// model.safetensors with U8 tensors "a" [7, 1000] and "b" [5, 300]. Byte i of
// "a" is i * 7, of "b" i * 13, modulo 256.
class SmallSource {
 public:
  static constexpr uint64_t kBytesA = 7000;
  static constexpr uint64_t kBytesB = 1500;

  SmallSource() { Write(0); }

  // The same file again with every byte `more` higher: another checkpoint.
  void Write(uint8_t more) {
    for (uint64_t i = 0; i < kBytesA; ++i) a_[i] = static_cast<std::byte>(i * 7 + more);
    for (uint64_t i = 0; i < kBytesB; ++i) b_[i] = static_cast<std::byte>(i * 13 + more);
    const std::vector<TensorToWrite> tensors = {{"a", Dtype::kU8, {7, 1000}},
                                                {"b", Dtype::kU8, {5, 300}}};
    const std::vector<std::span<const std::byte>> data = {a_, b_};
    WriteSafetensors(path(), tensors, {}, data).IgnoreError();
  }

  std::string path() const { return folder_ / "model.safetensors"; }
  std::span<const std::byte> a() const { return a_; }
  std::span<const std::byte> b() const { return b_; }

 private:
  TempFolder folder_;
  std::vector<std::byte> a_ = std::vector<std::byte>(kBytesA);
  std::vector<std::byte> b_ = std::vector<std::byte>(kBytesB);
};

// Bytes of a tensor of an ACTIVE checkpoint; padding is not part of them.
inline std::vector<std::byte> BytesOf(const Catalog& catalog, const std::string& checkpoint,
                                      size_t tensor) {
  const ShardLeases::Held held = catalog.leases().Look(checkpoint).value();
  const PlannedTensor& planned = held.shard->plan.tensors.at(tensor);
  std::vector<std::byte> all;
  for (const std::span<std::byte> segment : held.memory->View().segments) {
    all.insert(all.end(), segment.begin(), segment.end());
  }
  const auto begin = all.begin() + static_cast<ptrdiff_t>(planned.offset);
  return {begin, begin + static_cast<ptrdiff_t>(planned.bytes)};
}

// Rows [begin, end) of `bytes`, `row` bytes each.
inline std::vector<std::byte> Rows(std::span<const std::byte> bytes, uint64_t row, uint64_t begin,
                                   uint64_t end) {
  const auto part = bytes.subspan(begin * row, (end - begin) * row);
  return {part.begin(), part.end()};
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_SMALL_SOURCE_H_
