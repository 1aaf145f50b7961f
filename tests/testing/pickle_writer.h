// Pickles of protocol 2, opcode by opcode: each function gives the bytes that push one value.
#ifndef CKPTD_TESTS_TESTING_PICKLE_WRITER_H_
#define CKPTD_TESTS_TESTING_PICKLE_WRITER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckptd::pickles {

// A whole pickle of `value`.
inline std::string Pickle(const std::string& value) { return "\x80\x02" + value + "."; }

inline std::string Text(std::string_view text) {
  std::string out = "X";
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(text.size() >> (8 * i) & 0xff));
  return out + std::string(text);
}
// As LONG1 of eight bytes.
inline std::string Int(int64_t number) {
  std::string out = "\x8a\x08";
  for (int i = 0; i < 8; ++i) {
    out.push_back(static_cast<char>(static_cast<uint64_t>(number) >> (8 * i) & 0xff));
  }
  return out;
}
inline std::string None() { return "N"; }
inline std::string Bool(bool value) { return value ? "\x88" : "\x89"; }
// "0.001", as protocol 0 writes it.
inline std::string Float(const std::string& text) { return "F" + text + "\n"; }
inline std::string Global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

inline std::string Group(const std::vector<std::string>& values, const char* end) {
  std::string out = "(";
  for (const std::string& value : values) out += value;
  return out + end;
}
inline std::string Tuple(const std::vector<std::string>& values) { return Group(values, "t"); }
inline std::string List(const std::vector<std::string>& values) {
  return "]" + Group(values, "e");
}
inline std::string Ints(const std::vector<uint64_t>& numbers) {
  std::vector<std::string> values;
  for (const uint64_t number : numbers) values.push_back(Int(static_cast<int64_t>(number)));
  return Tuple(values);
}
using Pairs = std::vector<std::pair<std::string, std::string>>;
inline std::string Entries(const Pairs& pairs) {
  std::vector<std::string> values;
  for (const auto& [key, value] : pairs) {
    values.push_back(key);
    values.push_back(value);
  }
  return Group(values, "u");
}
inline std::string Dict(const Pairs& pairs) { return "}" + Entries(pairs); }
inline std::string Call(const std::string& callee, const std::vector<std::string>& arguments) {
  return callee + Tuple(arguments) + "R";
}
// An object of a class whose state is that.
inline std::string Object(const std::string& symbol, const std::string& state) {
  return symbol + ")\x81" + state + "b";
}
inline std::string Put(uint8_t number, const std::string& value) {
  return value + "q" + std::string(1, static_cast<char>(number));
}
inline std::string Get(uint8_t number) {
  return "h" + std::string(1, static_cast<char>(number));
}

}  // namespace ckptd::pickles

#endif  // CKPTD_TESTS_TESTING_PICKLE_WRITER_H_
