// Feeds arbitrary bytes as a file of torch: to its reader, and what that accepts to the format. The
// directory of a zip keeps most inputs out, so what does not begin as one is a pickle between
// storages that are there. What is accepted lies in the file.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/source/formats/torch/format.h"
#include "common/source/piece.h"
#include "tests/fuzz/properties.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/torch_writer.h"

namespace ckptd::fuzz {
namespace {

constexpr char kPath[] = "/m.pt";

void CheckIndex(const CheckpointIndex& index) {
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    const TensorEntry& tensor = index.tensors[i];
    Require(i == 0 || index.tensors[i - 1].name < tensor.name, "tensors are sorted, once each");
    Require(tensor.group < index.groups.size(), "its group exists");
    Require(tensor.pieces.size() == 1, "a tensor is one piece");
    Require(WhyImpossible(tensor.pieces[0], tensor, index.files[0].bytes).empty(),
            "it lies in the file");
  }
  for (const auto& [alias, name] : index.aliases) {
    const TensorEntry* const tensor = index.Find(name);
    Require(tensor != nullptr && tensor->name == name, "an alias names a tensor: " + name);
    Require(index.Find(alias) == tensor, "an alias is none of the tensors: " + alias);
  }
  Require(index.values.size() + index.opaque.size() <= kMaxSourceValues, "values are counted");
}

void FuzzFile(std::string_view input) {
  MemoryStorage storage;
  const bool is_file = input.starts_with("PK") || input.starts_with("\x80\x02\x8a\x0a");
  storage.Write(kPath, is_file ? std::string(input)
                               : WriteZip(TorchRecords(std::string(input),
                                                       {{"0", std::string(64, 'a')},
                                                        {"1", std::string(8, 'b')},
                                                        {"2", ""}}))
                                     .bytes);
  const TorchFormat format;
  for (const char* part : {"", "optimizer", "extra", "all"}) {
    Listing listing;
    listing.source = kPath;
    listing.part = part;
    const auto opened = format.ReadIndex(storage, listing);
    if (opened.ok()) {
      CheckIndex(opened->index);
      for (const std::string& remark : opened->remarks) Require(!remark.empty(), "remarks say what");
    } else {
      RequireGoodError(opened.status());
    }
  }
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzFile({reinterpret_cast<const char*>(data), size});
  return 0;
}
