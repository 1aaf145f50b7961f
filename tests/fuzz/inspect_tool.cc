// Reads paths from stdin, one a line; prints for each "ok <tensors>" or the
// error's name. For tests/fuzz/compare_safetensors.py.
#include <iostream>
#include <string>

#include "common/base/status.h"
#include "common/checkpoint/open.h"

int main() {
  std::string path;
  while (std::getline(std::cin, path)) {
    const auto index = ckptd::OpenCheckpoint(path);
    if (index.ok()) {
      std::cout << "ok " << index->tensors.size() << std::endl;
      continue;
    }
    const ckptd::Facts facts = ckptd::FactsOf(index.status());
    const auto error = facts.find("error");
    std::cout << (error == facts.end() ? ckptd::ReasonOf(index.status()) : error->second)
              << std::endl;
  }
  return 0;
}
