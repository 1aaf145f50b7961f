#include "common/export/dcp_folder.h"

#include "common/base/status.h"
#include "common/export/output_file.h"
#include "common/export/pickle_writer.h"
#include "common/export/torch_file.h"

namespace ckptd {
namespace {

// torch/distributed/checkpoint of 2.3 and later; `version` is since 2.6.
constexpr char kModule[] = "torch.distributed.checkpoint.metadata";
constexpr char kFileModule[] = "torch.distributed.checkpoint.filesystem";
constexpr char kVersion[] = "1.0.0";

bool IsObject(const DcpItem& item) { return item.tensor->from->kind == EntryKind::kObject; }

// A dataclass is an object that is made without __init__ and then gets its fields.
void BeginObject(std::string_view module, std::string_view name, PickleWriter& out) {
  out.Global(module, name);
  out.EmptyTuple();
  out.NewObject();
  out.EmptyDict();
  out.Mark();
}
void EndObject(PickleWriter& out) {
  out.SetItems();
  out.Build();
}

void AddProperties(Dtype dtype, PickleWriter& out) {
  out.Global(kModule, "TensorProperties");
  out.EmptyTuple();
  out.NewObject();
  out.Mark();
  out.Global("torch", TorchName(dtype));
  out.Global("torch.serialization", "_get_layout");
  out.Mark();
  out.Text("torch.strided");
  out.Tuple();
  out.Reduce();
  out.Bool(false);  // requires_grad
  out.Global(kModule, "_MEM_FORMAT_ENCODING");
  out.Mark();
  out.Int(0);  // contiguous
  out.Tuple();
  out.Reduce();
  out.Bool(false);  // pin_memory
  out.Tuple();
  out.Build();
}

// torch counts pairs of half a byte.
Shape TorchShape(const OutTensor& tensor) {
  Shape shape = tensor.from->shape;
  if (tensor.dtype == Dtype::kF4) shape.back() /= 2;
  return shape;
}

void AddStorageMetadata(const DcpItem& item, PickleWriter& out) {
  if (IsObject(item)) {
    out.Global(kModule, "BytesStorageMetadata");
    out.EmptyTuple();
    out.NewObject();
    return;
  }
  const Shape shape = TorchShape(*item.tensor);
  BeginObject(kModule, "TensorStorageMetadata", out);
  out.Text("properties");
  AddProperties(item.tensor->dtype, out);
  out.Text("size");
  out.Size(shape);
  out.Text("chunks");
  out.EmptyList();
  out.Mark();
  BeginObject(kModule, "ChunkStorageMetadata", out);
  out.Text("offsets");
  out.Size(Shape(shape.size(), 0));
  out.Text("sizes");
  out.Size(shape);
  EndObject(out);
  out.Appends();
  EndObject(out);
}

void AddIndex(const DcpItem& item, PickleWriter& out) {
  BeginObject(kModule, "MetadataIndex", out);
  out.Text("fqn");
  out.Text(item.name);
  out.Text("index");
  if (IsObject(item)) {
    out.None();
  } else {
    out.Int(0);
    out.Text("offset");
    out.Size(Shape(item.tensor->from->shape.size(), 0));
  }
  EndObject(out);
}

void AddStorageInfo(const DcpItem& item, PickleWriter& out) {
  BeginObject(kFileModule, "_StorageInfo", out);
  out.Text("relative_path");
  out.Text(kDcpFile);
  out.Text("offset");
  out.Int(item.offset);
  out.Text("length");
  out.Int(item.bytes);
  EndObject(out);
}

}  // namespace

std::string DcpMetadata(const std::vector<DcpItem>& items) {
  PickleWriter out;
  BeginObject(kModule, "Metadata", out);
  out.Text("state_dict_metadata");
  out.EmptyDict();
  out.Mark();
  for (const DcpItem& item : items) {
    out.Text(item.name);
    AddStorageMetadata(item, out);
  }
  out.SetItems();
  out.Text("planner_data");  // each name is one key of a dict without others in it
  out.EmptyDict();
  out.Mark();
  for (const DcpItem& item : items) {
    out.Text(item.name);
    out.Mark();
    out.Text(item.name);
    out.Tuple();
  }
  out.SetItems();
  out.Text("storage_data");
  out.EmptyDict();
  out.Mark();
  for (const DcpItem& item : items) {
    AddIndex(item, out);
    AddStorageInfo(item, out);
  }
  out.SetItems();
  out.Text("storage_meta");
  out.None();
  out.Text("version");
  out.Text(kVersion);
  EndObject(out);
  return out.Finish();
}

absl::Status WriteDcp(const std::string& file, const std::string& metadata, const Content& content,
                      TensorCopier& copier) {
  std::vector<DcpItem> items;
  CKPTD_ASSIGN_OR_RETURN(OutputFile out, OutputFile::Create(file));
  for (const OutTensor& tensor : content.tensors) {
    DcpItem item{tensor.name, &tensor, out.size(), 0};
    CKPTD_RETURN_IF_ERROR(IsObject(item) ? copier.Append(tensor, out, nullptr)
                                         : AppendTorchItem(tensor, copier, out));
    item.bytes = out.size() - item.offset;
    items.push_back(item);
    for (const std::string& alias : tensor.aliases) {
      item.name = alias;
      items.push_back(item);
    }
  }
  CKPTD_RETURN_IF_ERROR(out.Finish());
  CKPTD_ASSIGN_OR_RETURN(OutputFile last, OutputFile::Create(metadata));
  CKPTD_RETURN_IF_ERROR(last.Append(DcpMetadata(items)));
  return last.Finish();
}

}  // namespace ckptd
