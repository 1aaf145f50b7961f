// Runs the rest of this process on the fake CUDA driver (tests/fakes/cuda).
#ifndef CKPTD_TESTS_TESTING_FAKE_CUDA_H_
#define CKPTD_TESTS_TESTING_FAKE_CUDA_H_

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>

#include "common/cuda/device.h"
#include "server/memory/cuda/kernels/image.h"

namespace ckptd {

// `config` as tests/fakes/cuda/README.md has it. Call before anything opens the driver:
// it is read once per process.
inline void UseFakeCuda(const std::string& config) {
  std::string folder = ::testing::TempDir() + "fake_cudaXXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/fake.conf") << config << "state_dir = .\n";
  ::setenv("CKPTD_FAKE_CUDA", (folder + "/fake.conf").c_str(), 1);
  // A library that is loaded is found by its name.
  ASSERT_NE(::dlopen(CKPTD_FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
}

// Code of the copy kernels, or what the fake takes for it where there is none: it runs the
// twins of `twins =` in any case.
inline std::span<const std::byte> KernelsForTheFake() {
  static const std::string stand_in = "// ckptd_pack ckptd_cast ckptd_batch";
  const std::span<const std::byte> image = kernels::KernelImage();
  if (!image.empty()) return image;
  return std::as_bytes(std::span(stand_in.c_str(), stand_in.size() + 1));
}

// The fake's GPU number `index`, opened.
inline std::shared_ptr<CudaDevice> FakeGpu(size_t index = 0) {
  const CudaDriver& driver = **CudaDriver::Load();
  return CudaDevice::Open(driver, ListGpus(driver).value().at(index)).value();
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_FAKE_CUDA_H_
