// Host twins of two kernels of the tests, as a library that a configuration names.
#include <cstddef>

namespace {

struct AddParams {
  unsigned char* to;
  unsigned long count;
  unsigned char term;
};

}  // namespace

extern "C" {

extern const std::size_t add_twin_bytes;
const std::size_t add_twin_bytes = sizeof(AddParams);

void add_twin(const void* params, unsigned grid, unsigned block) {
  const auto& add = *static_cast<const AddParams*>(params);
  const unsigned long threads = static_cast<unsigned long>(grid) * block;
  for (unsigned long i = 0; i < add.count && i < threads; ++i) {
    add.to[i] = static_cast<unsigned char>(add.to[i] + add.term);
  }
}

// Without its size.
void unsized_twin(const void* params, unsigned grid, unsigned block) {
  add_twin(params, grid, block);
}

}  // extern "C"
