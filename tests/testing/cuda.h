// The CUDA driver that the rest of this process uses: the fake one (tests/fakes/cuda), or the
// machine's own where CKPTD_TEST_GPU is set (tests/gpu/checks_contract.py).
#ifndef CKPTD_TESTS_TESTING_CUDA_H_
#define CKPTD_TESTS_TESTING_CUDA_H_

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/cuda/device.h"
#include "server/memory/cuda/kernels/image.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {

inline bool OnRealGpu() { return ::getenv("CKPTD_TEST_GPU") != nullptr; }

// `config` as tests/fakes/cuda/README.md has it. Call before anything opens the driver:
// it is read once per process.
inline void UseTestCuda(const std::string& config) {
  if (OnRealGpu()) return;
  static const TempFolder folder;
  ::setenv("CKPTD_FAKE_CUDA", folder.Write("fake.conf", config + "state_dir = .\n").c_str(), 1);
  // A library that is loaded is found by its name.
  ASSERT_NE(::dlopen(CKPTD_FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
}

// Lines of the fake's trace so far (trace = trace) that have `text`.
inline int CudaTraced(const std::string& text) {
  const std::filesystem::path config = ::getenv("CKPTD_FAKE_CUDA");
  std::ifstream trace(config.parent_path() / "trace");
  int count = 0;
  for (std::string line; std::getline(trace, line);) count += line.find(text) != line.npos;
  return count;
}

// Code of the copy kernels, or what the fake takes for it where there is none: it runs the
// twins of `twins =` in any case.
inline std::span<const std::byte> TestKernels() {
  static const std::string stand_in = "// ckptd_pack ckptd_cast ckptd_batch";
  const std::span<const std::byte> image = kernels::KernelImage();
  if (!image.empty() || OnRealGpu()) return image;
  return std::as_bytes(std::span(stand_in.c_str(), stand_in.size() + 1));
}

// GPU number `index`, opened; where there are fewer they serve by turns.
inline std::shared_ptr<CudaDevice> TestGpu(size_t index = 0) {
  const CudaDriver& driver = **CudaDriver::Load();
  const std::vector<GpuInfo> gpus = ListGpus(driver).value();
  return CudaDevice::Open(driver, gpus.at(OnRealGpu() ? index % gpus.size() : index)).value();
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_CUDA_H_
