// The fixture of the memory contract: what a backend's test file provides, and what its tests
// share.
#ifndef CKPTD_TESTS_CONTRACT_MEMORY_MEMORY_CONTRACT_FIXTURE_H_
#define CKPTD_TESTS_CONTRACT_MEMORY_MEMORY_CONTRACT_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/memory/memory.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {

// A client's view of a slab that it got. Its mappings end with this object.
class ClientMemory {
 public:
  virtual ~ClientMemory() = default;
  virtual uint64_t bytes() const = 0;
  virtual std::vector<std::byte> Read(uint64_t offset, uint64_t bytes) const = 0;
  virtual void Write(uint64_t offset, std::span<const std::byte> bytes) = 0;
  std::vector<std::byte> Read() const { return Read(0, bytes()); }
};

struct MemoryCase {
  std::string name;
  // Makes a backend with that budget. Its segments are `segment_bytes` long, except the last one
  // of a slab.
  std::function<absl::StatusOr<std::unique_ptr<MemoryBackend>>(uint64_t budget)> make;
  uint64_t segment_bytes = 0;
  // Maps a handle as a client of that mode does.
  std::function<absl::StatusOr<std::unique_ptr<ClientMemory>>(SlabHandle, AttachMode)> attach;
  std::optional<HandleKind> kind = {};  // kind of its slabs; none: the backend's preferred one
};

inline std::string MemoryCaseName(const testing::TestParamInfo<MemoryCase>& info) {
  return info.param.name;
}

class MemoryContract : public testing::TestWithParam<MemoryCase> {
 protected:
  static constexpr uint64_t kBudgetSegments = 16;

  void SetUp() override {
    segment_ = GetParam().segment_bytes;
    ASSERT_OK_AND_ASSIGN(backend_, GetParam().make(kBudgetSegments * segment_));
  }

  absl::StatusOr<std::unique_ptr<Slab>> Ask(uint64_t bytes, AttachMode mode = AttachMode::kShared) {
    return backend_->Allocate(bytes, mode, GetParam().kind.value_or(backend_->kinds().front()));
  }

  std::unique_ptr<Slab> Allocate(uint64_t bytes, AttachMode mode = AttachMode::kShared) {
    absl::StatusOr<std::unique_ptr<Slab>> slab = Ask(bytes, mode);
    EXPECT_OK(slab);
    return slab.ok() ? std::move(*slab) : nullptr;
  }

  // A sealed slab whose byte i is Expected(seed, i).
  std::unique_ptr<Slab> Published(uint64_t bytes, unsigned seed) {
    std::unique_ptr<Slab> slab = Allocate(bytes);
    Fill(*slab, seed);
    backend_->ReleaseStaging(*slab);
    EXPECT_OK(backend_->Seal(*slab));
    return slab;
  }

  static std::byte Expected(unsigned seed, uint64_t i) {
    return static_cast<std::byte>((i * 31 + i / 4096 + seed * 97) & 0xff);
  }

  static void Fill(Slab& slab, unsigned seed) {
    std::vector<std::byte> bytes(slab.bytes());
    for (uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = Expected(seed, i);
    WriteBytes(slab.view(), 0, bytes);
  }

  // How many of the first bytes are as Fill left them.
  static uint64_t Matching(std::span<const std::byte> bytes, unsigned seed) {
    uint64_t i = 0;
    while (i < bytes.size() && bytes[i] == Expected(seed, i)) ++i;
    return i;
  }

  std::unique_ptr<ClientMemory> Attach(Slab& slab, AttachMode mode) {
    absl::StatusOr<SlabHandle> handle = backend_->Export(slab, mode);
    EXPECT_OK(handle);
    if (!handle.ok()) return nullptr;
    auto client = GetParam().attach(*std::move(handle), mode);
    EXPECT_OK(client);
    return client.ok() ? std::move(*client) : nullptr;
  }

  static std::vector<uint64_t> IdsOf(const Slab& slab) {
    std::vector<uint64_t> ids;
    for (const Segment& segment : slab.segments()) ids.push_back(segment.id);
    return ids;
  }

  static bool Overlap(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
    return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
  }

  uint64_t segment_ = 0;
  std::unique_ptr<MemoryBackend> backend_;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_MEMORY_MEMORY_CONTRACT_FIXTURE_H_
