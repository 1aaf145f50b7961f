// Values of pickles as Python and JSON write them. Pure.
#ifndef CKPTD_COMMON_SOURCE_TORCH_TEXT_OF_H_
#define CKPTD_COMMON_SOURCE_TORCH_TEXT_OF_H_

#include <optional>
#include <string>

#include "common/source/pickle/value.h"

namespace ckptd::torch {

// A key of a dict as Python's str() gives it: a text as it is, ('a', 1), 1.5, None. What is nested
// deep or very long is cut.
std::string KeyText(const pickle::Value& key);

// A plain value as JSON: numbers, texts, and what JSON lacks as text (b'\x00', "torch.float32",
// sets as lists); nullopt: a container, a record, or longer than `limit` bytes.
std::optional<std::string> PlainJson(const pickle::Value& value, size_t limit);

// A plain value as JSON that tells its type: null, booleans, integers and texts as they are, others
// as [type, content], such as ["bytes", base64], ["float", hexadecimal], ["tuple", [...]], ["set",
// [...]] and ["complex", [real, imaginary]]. nullopt: another kind, nested deep, or longer than
// `limit` bytes.
std::optional<std::string> TypedJson(const pickle::Value& value, size_t limit);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_TORCH_TEXT_OF_H_
