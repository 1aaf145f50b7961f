// Feeds a folder to the format of torch.distributed.checkpoint.
//
// The input is lines "--- NAME", each before the bytes of one file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/source/formats/dcp/format.h"
#include "tests/fuzz/format_properties.h"
#include "tests/testing/memory_storage.h"

namespace ckptd::fuzz {
namespace {

constexpr std::string_view kBegin = "\n--- ";
constexpr size_t kMaxFiles = 8;
constexpr char kFolder[] = "/f";

// Whether a name can be one of a file below the folder.
bool IsName(std::string_view name) {
  return !name.empty() && name.front() != '/' && name.back() != '/' &&
         name.find("//") == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

MemoryStorage FolderOf(std::string_view input) {
  MemoryStorage storage;
  if (!input.starts_with(kBegin.substr(1))) return storage;
  input.remove_prefix(kBegin.size() - 1);
  for (size_t i = 0; i < kMaxFiles && !input.empty(); ++i) {
    const size_t line = std::min(input.find('\n'), input.size());
    const std::string_view name = input.substr(0, line);
    input.remove_prefix(std::min(line + 1, input.size()));
    const size_t end = std::min(input.find(kBegin), input.size());
    if (IsName(name)) {
      storage.Write(kFolder + ("/" + std::string(name)), std::string(input.substr(0, end)));
    }
    input.remove_prefix(std::min(end + kBegin.size(), input.size()));
  }
  return storage;
}

void FuzzFolder(std::string_view input) {
  static const DcpFormat dcp{};
  const MemoryStorage storage = FolderOf(input);
  for (const char* source : {kFolder, "/f/.metadata"}) {
    auto listing = ListSource(storage, source);
    if (!listing.ok()) continue;
    for (const char* part : {"", "optimizer", "extra", "all"}) {
      listing->part = part;
      ReadAs(dcp, storage, *listing);
    }
  }
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzFolder({reinterpret_cast<const char*>(data), size});
  return 0;
}
