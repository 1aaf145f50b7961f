// Feeds a folder of several files, in memory, to the formats that read such: DeepSpeed's, files of
// ranks, torch_checkpointing's, offloaded weights, GGUF.
//
// The input is lines "--- NAME BYTES...", each before the content of one file. A file of torch
// (.pt, .bin) is written as its pickle alone, and a storage of each of the BYTES is put beside it:
// the first one is called "0". Other files are as they are.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/source/formats/deepspeed/format.h"
#include "common/source/formats/gguf/format.h"
#include "common/source/formats/offload/format.h"
#include "common/source/formats/per_rank/format.h"
#include "common/source/formats/torch_checkpointing/format.h"
#include "tests/fuzz/format_properties.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/torch_writer.h"

namespace ckptd::fuzz {
namespace {

constexpr std::string_view kBegin = "--- ";
constexpr size_t kMaxFiles = 12;
constexpr uint64_t kMaxStorageBytes = 4096;
constexpr char kFolder[] = "/f";

// The words of a line, which is taken from `input`.
std::vector<std::string> TakeLine(std::string_view& input) {
  const size_t end = std::min(input.find('\n'), input.size());
  std::vector<std::string> words(1);
  for (const char c : input.substr(0, end)) {
    if (c == ' ') {
      words.emplace_back();
    } else {
      words.back().push_back(c);
    }
  }
  input.remove_prefix(std::min(end + 1, input.size()));
  return words;
}

Storages StoragesOf(const std::vector<std::string>& words) {
  Storages out;
  for (size_t i = 1; i < words.size() && i < 64; ++i) {
    uint64_t bytes = 0;
    std::from_chars(words[i].data(), words[i].data() + words[i].size(), bytes);
    out.emplace_back(std::to_string(i - 1), std::string(std::min(bytes, kMaxStorageBytes), 'd'));
  }
  return out;
}

// Whether a name can be one of a file below the folder.
bool IsName(std::string_view name) {
  return !name.empty() && name.front() != '/' && name.back() != '/' &&
         name.find("//") == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

MemoryStorage FolderOf(std::string_view input) {
  MemoryStorage storage;
  for (size_t i = 0; i < kMaxFiles && input.starts_with(kBegin); ++i) {
    input.remove_prefix(kBegin.size());
    const std::vector<std::string> words = TakeLine(input);
    const std::string next = "\n" + std::string(kBegin);
    const size_t end = std::min(input.find(next), input.size());
    std::string content(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
    const std::string& name = words[0];
    if (!IsName(name)) continue;
    const bool is_torch = name.ends_with(".pt") || name.ends_with(".bin");
    if (is_torch) content = WriteZip(TorchRecords(content, StoragesOf(words))).bytes;
    storage.Write(std::string(kFolder) + "/" + name, std::move(content));
  }
  return storage;
}

void FuzzFolder(std::string_view input) {
  static const DeepSpeedFormat deepspeed{};
  static const PerRankFormat per_rank{};
  static const TorchCheckpointingFormat torch_checkpointing{};
  static const OffloadFormat offload{};
  static const GgufFormat gguf{};
  const MemoryStorage storage = FolderOf(input);
  auto listing = ListSource(storage, kFolder);
  if (!listing.ok()) return;
  for (const char* part : {"", "module", "optimizer", "extra"}) {
    listing->part = part;
    ReadAs(deepspeed, storage, *listing);
    ReadAs(per_rank, storage, *listing);
    ReadAs(torch_checkpointing, storage, *listing);
  }
  listing->part = "";
  ReadAs(offload, storage, *listing);
  ReadAs(gguf, storage, *listing);
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzFolder({reinterpret_cast<const char*>(data), size});
  return 0;
}
