// The contract on safetensors and on what torch writes, each in its forms, and on a format of two
// pieces with strides.
#include <map>
#include <span>

#include "common/source/registry.h"
#include "tests/contract/format/dcp_cases.h"
#include "tests/contract/format/folders_cases.h"
#include "tests/contract/format/format_contract.h"
#include "tests/testing/halves_format.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/torch_writer.h"

namespace ckptd {
namespace {

const CheckpointFormat& FormatNamed(std::string_view name) {
  for (const CheckpointFormat* format : Formats()) {
    if (format->name() == name) return *format;
  }
  return *Formats().front();
}

std::string SafetensorsBytes(std::span<const TensorOfFormat> tensors) {
  std::vector<TensorToWrite> wanted;
  for (const TensorOfFormat& tensor : tensors) {
    wanted.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const SafetensorsLayout layout = LayoutSafetensors(wanted, {}).value();
  std::string out = layout.start;
  for (const size_t number : layout.order) {
    const std::vector<std::byte>& bytes = tensors[number].bytes;
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return out;
}

std::string WriteFile(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  storage.Write("/s/model.safetensors", SafetensorsBytes(tensors));
  return "/s/model.safetensors";
}

std::string WriteFolder(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  storage.Write("/s/a.safetensors", SafetensorsBytes(std::span(tensors).first(2)));
  storage.Write("/s/b.safetensors", SafetensorsBytes(std::span(tensors).subspan(2)));
  return "/s";
}

std::string WriteWithIndex(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  WriteFolder(storage, tensors);
  std::string index = "{\"weight_map\": {";
  for (size_t i = 0; i < tensors.size(); ++i) {
    index += (i == 0 ? "\"" : ", \"") + tensors[i].name + "\": \"" + (i < 2 ? "a" : "b") +
             ".safetensors\"";
  }
  storage.Write("/s/model.safetensors.index.json", index + "}}");
  return "/s";
}

std::string WriteHalves(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  std::string list;
  std::string files[2] = {"head", "head"};
  for (const TensorOfFormat& tensor : tensors) {
    const uint64_t rows = tensor.shape[0];
    const uint64_t columns = tensor.shape[1];
    const size_t element = BitsOf(tensor.dtype) / 8;
    list += tensor.name + " " + std::string(NameOf(tensor.dtype)) + " " + std::to_string(rows) +
            " " + std::to_string(columns) + " " + std::to_string(files[0].size()) + " " +
            std::to_string(files[1].size()) + "\n";
    const auto add = [&](std::string& file, uint64_t row, uint64_t column) {
      const std::byte* const from = tensor.bytes.data() + (row * columns + column) * element;
      file.append(reinterpret_cast<const char*>(from), element);
    };
    for (uint64_t row = 0; row < rows / 2; ++row) {
      for (uint64_t column = 0; column < columns; ++column) add(files[0], row, column);
    }
    for (uint64_t column = 0; column < columns; ++column) {
      for (uint64_t row = rows / 2; row < rows; ++row) add(files[1], row, column);
    }
  }
  storage.Write("/h/upper", files[0]);
  storage.Write("/h/lower", files[1]);
  storage.Write("/h/halves.txt", list + "end\n");
  return "/h";
}

// A state_dict() of these; each second one lies in its storage column by column.
std::string StateDict(std::span<const TensorOfFormat> tensors, Storages& storages) {
  pickles::Pairs pairs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorOfFormat& tensor = tensors[i];
    const uint64_t rows = tensor.shape[0];
    const uint64_t columns = tensor.shape[1];
    const size_t element = BitsOf(tensor.dtype) / 8;
    const bool is_turned = i % 2 == 1;
    std::string bytes = TextOf(tensor.bytes);
    for (uint64_t n = 0; is_turned && n < rows * columns; ++n) {
      const std::byte* const from = &tensor.bytes[(n % rows * columns + n / rows) * element];
      bytes.replace(n * element, element, reinterpret_cast<const char*>(from), element);
    }
    const std::string key = std::to_string(i);
    storages.emplace_back(key, bytes);
    pairs.emplace_back(
        pickles::Text(tensor.name),
        pickles::TensorV2(pickles::Storage(StorageKind(tensor.dtype), key, rows * columns), 0,
                          tensor.shape,
                          is_turned ? Shape{1, rows} : Shape{columns, 1}));
  }
  return pickles::OrderedDict(pairs);
}

std::string ZipOf(std::span<const TensorOfFormat> tensors) {
  Storages storages;
  const std::string root = StateDict(tensors, storages);
  return TorchZip(root, storages);
}

std::string WriteTorchZip(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  storage.Write("/t/any.name", ZipOf(tensors));
  return "/t/any.name";
}

std::string WriteTorchLegacy(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  Storages storages;
  const std::string root = StateDict(tensors, storages);
  std::vector<LegacyStorage> legacy;
  for (size_t i = 0; i < tensors.size(); ++i) {
    legacy.push_back({storages[i].first, ElementCount(tensors[i].shape), storages[i].second});
  }
  storage.Write("/t/model.pth", TorchLegacy(root, legacy));
  return "/t/model.pth";
}

std::string WriteTorchIndex(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  storage.Write("/t/a.bin", ZipOf(std::span(tensors).first(2)));
  storage.Write("/t/b.bin", ZipOf(std::span(tensors).subspan(2)));
  std::string index = "{\"weight_map\": {";
  for (size_t i = 0; i < tensors.size(); ++i) {
    index += (i == 0 ? "\"" : ", \"") + tensors[i].name + "\": \"" + (i < 2 ? "a" : "b") +
             ".bin\"";
  }
  storage.Write("/t/pytorch_model.bin.index.json", index + "}}");
  return "/t";
}

std::string WriteTorchFolder(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors) {
  storage.Write("/t/pytorch_model-00001-of-00002.bin", ZipOf(std::span(tensors).first(2)));
  storage.Write("/t/pytorch_model-00002-of-00002.bin", ZipOf(std::span(tensors).subspan(2)));
  storage.Write("/t/training_args.bin", "no weights");
  return "/t";
}

const HalvesFormat kHalves;

INSTANTIATE_TEST_SUITE_P(
    All, FormatContract,
    testing::Values(FormatCase{"SafetensorsFile", &FormatNamed("safetensors"), WriteFile},
                    FormatCase{"SafetensorsFolder", &FormatNamed("safetensors"), WriteFolder},
                    FormatCase{"SafetensorsWithIndex", &FormatNamed("safetensors"), WriteWithIndex},
                    FormatCase{"TorchZip", &FormatNamed("torch"), WriteTorchZip},
                    FormatCase{"TorchLegacy", &FormatNamed("torch"), WriteTorchLegacy},
                    FormatCase{"TorchWithIndex", &FormatNamed("torch"), WriteTorchIndex},
                    FormatCase{"TorchFolder", &FormatNamed("torch"), WriteTorchFolder},
                    FormatCase{"Offload", &FormatNamed("offload"), WriteOffload},
                    FormatCase{"Gguf", &FormatNamed("gguf"), WriteGguf, {Dtype::kU8}},
                    FormatCase{"Dcp", &FormatNamed("dcp"), WriteDcp},
                    FormatCase{"DcpOfAccelerate", &FormatNamed("dcp"), WriteAccelerate},
                    FormatCase{"PerRank", &FormatNamed("per_rank"), WritePerRank},
                    FormatCase{"TorchCheckpointing", &FormatNamed("torch_checkpointing"),
                               WriteTorchCheckpointing},
                    FormatCase{"DeepSpeed", &FormatNamed("deepspeed"), WriteDeepSpeed},
                    FormatCase{"Halves", &kHalves, WriteHalves}),
    [](const auto& one) { return one.param.name; });

TEST(Registry, NamesEachFormatOnce) {
  std::set<std::string_view> names;
  for (const CheckpointFormat* format : Formats()) {
    EXPECT_TRUE(names.insert(format->name()).second) << format->name();
  }
}

}  // namespace
}  // namespace ckptd
