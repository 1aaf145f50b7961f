// Files as torch.save writes them, put together from pickles and storages by hand.
#ifndef CKPTD_TESTS_TESTING_TORCH_WRITER_H_
#define CKPTD_TESTS_TESTING_TORCH_WRITER_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/source/index.h"
#include "tests/testing/pickle_writer.h"
#include "tests/testing/zip_writer.h"

namespace ckptd::pickles {

// ("storage", class, key, "cpu", elements), outside of the pickle. "Float" is torch.FloatStorage.
inline std::string Storage(const std::string& kind, const std::string& key, uint64_t elements,
                           const std::vector<std::string>& more = {}) {
  std::vector<std::string> id = {Text("storage"), Global("torch", kind + "Storage"), Text(key),
                                 Text("cpu"), Int(static_cast<int64_t>(elements))};
  id.insert(id.end(), more.begin(), more.end());
  return Tuple(id) + "Q";
}
inline std::string OrderedDict(const Pairs& pairs = {}) {
  return Call(Global("collections", "OrderedDict"), {}) + (pairs.empty() ? "" : Entries(pairs));
}
inline std::string TensorV2(const std::string& storage, uint64_t offset, const Shape& shape,
                            const Shape& strides, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {storage,       Int(static_cast<int64_t>(offset)),
                                        Ints(shape),   Ints(strides),
                                        Bool(false),   OrderedDict()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments);
}
// In an untyped storage: "uint16" is torch.uint16.
inline std::string TensorV3(const std::string& key, uint64_t bytes, uint64_t offset,
                            const Shape& shape, const Shape& strides, const std::string& dtype) {
  const std::string id = Tuple({Text("storage"), Global("torch.storage", "UntypedStorage"),
                                Text(key), Text("cpu"), Int(static_cast<int64_t>(bytes))}) +
                         "Q";
  return Call(Global("torch._utils", "_rebuild_tensor_v3"),
              {id, Int(static_cast<int64_t>(offset)), Ints(shape), Ints(strides), Bool(false),
               OrderedDict(), Global("torch", dtype)});
}

}  // namespace ckptd::pickles

namespace ckptd {

using Storages = std::vector<std::pair<std::string, std::string>>;  // key and bytes

inline std::vector<ZipRecord> TorchRecords(const std::string& pickle, const Storages& storages,
                                           const std::string& byte_order = "little") {
  std::vector<ZipRecord> records = {{.name = "m/data.pkl", .bytes = pickle},
                                    {.name = "m/byteorder", .bytes = byte_order}};
  for (const auto& [key, bytes] : storages) {
    records.push_back({.name = "m/data/" + key, .bytes = bytes});
  }
  records.push_back({.name = "m/version", .bytes = "3\n"});
  return records;
}

// A file as torch 1.6 and newer save it. `root` pushes the object.
inline std::string TorchZip(const std::string& root, const Storages& storages,
                            const std::string& byte_order = "little") {
  return WriteZip(TorchRecords(pickles::Pickle(root), storages, byte_order)).bytes;
}

struct LegacyStorage {
  std::string key;
  uint64_t elements = 0;
  std::string bytes;
};

// Before torch 1.6.
inline std::string TorchLegacy(const std::string& root, const std::vector<LegacyStorage>& storages) {
  using pickles::Bool;
  using pickles::Dict;
  using pickles::Int;
  using pickles::Pickle;
  using pickles::Text;
  std::string out = Pickle("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19");
  out += Pickle(Int(1001));
  out += Pickle(Dict({{Text("protocol_version"), Int(1001)}, {Text("little_endian"), Bool(true)}}));
  out += Pickle(root);
  std::vector<std::string> keys;
  for (const LegacyStorage& storage : storages) keys.push_back(Text(storage.key));
  out += Pickle(pickles::List(keys));
  for (const LegacyStorage& storage : storages) {
    Put(out, storage.elements, 8);
    out += storage.bytes;
  }
  return out;
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_TORCH_WRITER_H_
