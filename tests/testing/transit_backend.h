// A memory backend with transit memory only, which it may refuse.
#ifndef CKPTD_TESTS_TESTING_TRANSIT_BACKEND_H_
#define CKPTD_TESTS_TESTING_TRANSIT_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/memory/memory.h"
#include "tests/testing/comms_in_process.h"

namespace ckptd {

// Refuses memory a number of times.
class ScarceTransit final : public TransitInProcess {
 public:
  explicit ScarceTransit(std::atomic<int>& refusals) : refusals_(refusals) {}
  absl::Status Reserve(uint64_t bytes) override {
    if (refusals_.load() == 0) return TransitInProcess::Reserve(bytes);
    --refusals_;
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory, "the GPU is full");
  }

 private:
  std::atomic<int>& refusals_;
};

// Provides transit memory only.
class TransitBackend final : public MemoryBackend {
 public:
  explicit TransitBackend(std::atomic<int>& refusals) : refusals_(refusals) {}
  std::vector<HandleKind> kinds() const override { return {HandleKind::kVmmFd}; }
  absl::StatusOr<std::unique_ptr<Slab>> Allocate(uint64_t, AttachMode, HandleKind) override {
    return absl::UnimplementedError("");
  }
  absl::Status Seal(Slab&) override { return absl::UnimplementedError(""); }
  absl::StatusOr<SlabHandle> Export(Slab&, AttachMode) override {
    return absl::UnimplementedError("");
  }
  void TransferOwnership(std::unique_ptr<Slab>) override {}
  void OnWriterRestart() override {}
  absl::StatusOr<std::unique_ptr<TransitMemory>> MakeTransit() override {
    return std::make_unique<ScarceTransit>(refusals_);
  }
  std::vector<uint64_t> OwnedSegments() const override { return {}; }
  MemoryUsage Usage() const override { return {}; }
  std::string tier() const override { return "transit"; }

 private:
  std::atomic<int>& refusals_;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_TRANSIT_BACKEND_H_
