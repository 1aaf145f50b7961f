// Feeds arbitrary bytes to the reader of zip files, whole and as a part of a longer object, and
// reads every record. What is accepted lies in the object, apart from each other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/source/zip/archive.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

// More than any input of a fuzzer packs.
constexpr size_t kMostRead = 1 << 20;
constexpr size_t kFront = 5;

class Bytes final : public ReadableObject {
 public:
  explicit Bytes(std::string bytes)
      : ReadableObject({.path = "/f", .bytes = bytes.size()}), bytes_(std::move(bytes)) {}
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    Require(offset <= size() && out.size() <= size() - offset, "reads stay in the object");
    std::copy_n(reinterpret_cast<const std::byte*>(bytes_.data()) + offset, out.size(),
                out.begin());
    return absl::OkStatus();
  }

 private:
  const std::string bytes_;
};

void CheckRecords(const zip::Archive& archive, uint64_t begin, uint64_t bytes) {
  uint64_t end = begin;
  for (const zip::Record& record : archive.records()) {
    Require(record.offset >= end, "records are in their order, and apart");
    Require(record.bytes <= begin + bytes - record.offset, "a record lies in its part");
    end = record.offset + record.bytes;
    Require(archive.Find(record.name) == &record, "names are unique");
    const auto plain = archive.Read(record, kMostRead);
    if (!plain.ok()) {
      RequireGoodError(plain.status());
    } else {
      Require(plain->size() == record.plain_bytes, "a record has its size");
    }
  }
}

void Open(const std::string& bytes, uint64_t begin, uint64_t size) {
  const auto archive = zip::Archive::Open(std::make_shared<const Bytes>(bytes), begin, size);
  if (!archive.ok()) return RequireGoodError(archive.status());
  CheckRecords(*archive, begin, size);
}

void FuzzZip(std::string_view input) {
  Open(std::string(input), 0, input.size());
  const std::string front(kFront, '\0');
  Open(front + std::string(input) + front, kFront, input.size());
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzZip({reinterpret_cast<const char*>(data), size});
  return 0;
}
