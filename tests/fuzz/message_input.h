// Fuzzers whose input is a protobuf message as text: mutated by structure, so that
// what libFuzzer tries is a message each time.
#ifndef CKPTD_TESTS_FUZZ_MESSAGE_INPUT_H_
#define CKPTD_TESTS_FUZZ_MESSAGE_INPUT_H_

#include <cstddef>
#include <cstdint>

#include "google/protobuf/message.h"

namespace ckptd::fuzz {

// Reads the text in [data, data + size); false when it is none.
bool ReadText(const uint8_t* data, size_t size, google::protobuf::Message& message);

// libFuzzer's custom mutator over the text of `message`, which is empty.
size_t MutateText(uint8_t* data, size_t size, size_t max_size, unsigned seed,
                  google::protobuf::Message& message);

}  // namespace ckptd::fuzz

// Defines the entry points of a fuzzer over `Message` that calls `function(input)`.
#define CKPTD_FUZZ_MESSAGE(Message, function)                                            \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {              \
    Message input;                                                                       \
    if (!::ckptd::fuzz::ReadText(data, size, input)) return -1;                          \
    function(input);                                                                     \
    return 0;                                                                            \
  }                                                                                      \
  extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, \
                                            unsigned seed) {                             \
    Message input;                                                                       \
    return ::ckptd::fuzz::MutateText(data, size, max_size, seed, input);                 \
  }

#endif  // CKPTD_TESTS_FUZZ_MESSAGE_INPUT_H_
