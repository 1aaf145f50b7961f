// The text of the fakes' configuration files: `key = value` lines, and `fault = FUNCTION
// key=value ...` among them.
#ifndef CKPTD_TESTS_FAKES_CUDA_CONFIG_TEXT_H_
#define CKPTD_TESTS_FAKES_CUDA_CONFIG_TEXT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ckptd::fake_cuda {

// Decimal or 0x.
std::optional<std::uint64_t> Number(const std::string& text);

inline bool Assign(const std::string& text, std::uint64_t& out) {
  const auto value = Number(text);
  if (value) out = *value;
  return value.has_value();
}

template <typename T>
bool Assign(const std::string& text, std::optional<T>& out) {
  const auto value = Number(text);
  if (value) out = static_cast<T>(*value);
  return value.has_value();
}

inline bool Assign(const std::string& text, bool& out) {
  if (text != "0" && text != "1") return false;
  out = text == "1";
  return true;
}

// False: not understood.
using ApplyPair = std::function<bool(const std::string& key, const std::string& value)>;

// Applies every line of a file; what is wrong with it, or an empty text.
std::string ReadConfig(const char* path, const ApplyPair& apply);
// The function's name, and every pair behind it; an empty name: not understood.
std::string ReadFault(const std::string& text, const ApplyPair& apply);

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_FAKES_CUDA_CONFIG_TEXT_H_
