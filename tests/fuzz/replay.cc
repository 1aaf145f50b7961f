// Gives a fuzzer the inputs that are committed, without libFuzzer: a test that every compiler builds.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Mutators call it, and nothing is mutated here.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerMutate(uint8_t* /*data*/, size_t size, size_t max_size) {
  return std::min(size, max_size);
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  std::vector<std::filesystem::path> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    inputs.push_back(entry.path());
  }
  std::sort(inputs.begin(), inputs.end());
  LLVMFuzzerTestOneInput(nullptr, 0);
  for (const auto& input : inputs) {
    std::printf("%s\n", input.c_str());  // the last one is the one that fails
    std::fflush(stdout);
    std::ifstream file(input, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    // A message of the contract as it was shows nothing any more.
    if (LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) != 0) {
      std::printf("that is no input of this fuzzer\n");
      return 1;
    }
  }
  return inputs.empty() ? 1 : 0;
}
