// Runs the rest of this process on the fake CUDA driver (tests/fakes/cuda).
#ifndef CKPTD_TESTS_TESTING_FAKE_CUDA_H_
#define CKPTD_TESTS_TESTING_FAKE_CUDA_H_

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/cuda/device.h"

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

// The fake's GPU number `index`, opened.
inline std::shared_ptr<CudaDevice> FakeGpu(size_t index = 0) {
  const CudaDriver& driver = **CudaDriver::Load();
  return CudaDevice::Open(driver, ListGpus(driver).value().at(index)).value();
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_FAKE_CUDA_H_
