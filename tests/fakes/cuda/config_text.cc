#include "tests/fakes/cuda/config_text.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace ckptd::fake_cuda {
namespace {

std::string Trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

std::optional<std::uint64_t> Number(const std::string& text) {
  if (text.empty() || text[0] == '-') return std::nullopt;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text.c_str(), &end, 0);
  if (*end != '\0') return std::nullopt;
  return value;
}

std::string ReadConfig(const char* path, const ApplyPair& apply) {
  std::ifstream file(path);
  if (!file) return std::string("cannot open ") + path;
  std::string line;
  while (std::getline(file, line)) {
    line = Trimmed(line);
    if (line.empty() || line[0] == '#') continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos ||
        !apply(Trimmed(line.substr(0, equals)), Trimmed(line.substr(equals + 1)))) {
      return std::string(path) + ": cannot understand \"" + line + "\"";
    }
  }
  return "";
}

std::string ReadFault(const std::string& text, const ApplyPair& apply) {
  std::istringstream words(text);
  std::string function;
  words >> function;
  std::string word;
  while (words >> word) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) return "";
    if (!apply(word.substr(0, equals), word.substr(equals + 1))) return "";
  }
  return function;
}

}  // namespace ckptd::fake_cuda
