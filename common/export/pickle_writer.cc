#include "common/export/pickle_writer.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ckptd {
namespace {

struct TorchDtype {
  Dtype dtype;
  std::string_view name;
  std::string_view storage;  // class of old; empty: dtypes since torch 2.1 have bytes for a storage
};

constexpr auto kTorchDtypes = std::to_array<TorchDtype>({
    {Dtype::kBool, "bool", "BoolStorage"},
    {Dtype::kU8, "uint8", "ByteStorage"},
    {Dtype::kI8, "int8", "CharStorage"},
    {Dtype::kI16, "int16", "ShortStorage"},
    {Dtype::kI32, "int32", "IntStorage"},
    {Dtype::kI64, "int64", "LongStorage"},
    {Dtype::kF16, "float16", "HalfStorage"},
    {Dtype::kBF16, "bfloat16", "BFloat16Storage"},
    {Dtype::kF32, "float32", "FloatStorage"},
    {Dtype::kF64, "float64", "DoubleStorage"},
    {Dtype::kC64, "complex64", "ComplexFloatStorage"},
    {Dtype::kC128, "complex128", "ComplexDoubleStorage"},
    {Dtype::kC32, "complex32", ""},
    {Dtype::kU16, "uint16", ""},
    {Dtype::kU32, "uint32", ""},
    {Dtype::kU64, "uint64", ""},
    {Dtype::kF8E4M3, "float8_e4m3fn", ""},
    {Dtype::kF8E5M2, "float8_e5m2", ""},
    {Dtype::kF8E4M3Fnuz, "float8_e4m3fnuz", ""},
    {Dtype::kF8E5M2Fnuz, "float8_e5m2fnuz", ""},
    {Dtype::kF8E8M0, "float8_e8m0fnu", ""},
    {Dtype::kF4, "float4_e2m1fn_x2", ""},
    {Dtype::kBits8, "bits8", ""},
    {Dtype::kBits16, "bits16", ""},
});

const TorchDtype* Find(Dtype dtype) {
  const auto* const found = std::find_if(kTorchDtypes.begin(), kTorchDtypes.end(),
                                         [dtype](const auto& one) { return one.dtype == dtype; });
  return found == kTorchDtypes.end() ? nullptr : found;
}

}  // namespace

void PickleWriter::Fixed(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
}

bool PickleWriter::Recall(const std::string& key) {
  const auto found = memo_.find(key);
  if (found == memo_.end()) return false;
  const bool small = found->second < 256;
  out_ += small ? 'h' : 'j';
  Fixed(found->second, small ? 1 : 4);
  return true;
}

void PickleWriter::Remember(const std::string& key) {
  const auto place = static_cast<uint32_t>(memo_.size());
  memo_[key] = place;
  out_ += place < 256 ? 'q' : 'r';
  Fixed(place, place < 256 ? 1 : 4);
}

void PickleWriter::Int(uint64_t value) {
  if (value < 0x100) {
    out_ += 'K';
    Fixed(value, 1);
  } else if (value < 0x10000) {
    out_ += 'M';
    Fixed(value, 2);
  } else if (value < 0x80000000) {
    out_ += 'J';
    Fixed(value, 4);
  } else {
    out_ += "\x8a\x09";  // nine bytes with sign
    Fixed(value, 8);
    out_ += '\0';
  }
}

void PickleWriter::Text(std::string_view text) {
  const std::string key = "t" + std::string(text);
  if (Recall(key)) return;
  out_ += 'X';
  Fixed(text.size(), 4);
  out_ += text;
  Remember(key);
}

void PickleWriter::Global(std::string_view module, std::string_view name) {
  const std::string both = std::string(module) + '\n' + std::string(name) + '\n';
  if (Recall("g" + both)) return;
  out_ += 'c' + both;
  Remember("g" + both);
}

void PickleWriter::ShapeTuple(const Shape& shape) {
  if (shape.empty()) return EmptyTuple();
  Mark();
  for (const uint64_t size : shape) Int(size);
  Tuple();
}

void PickleWriter::Size(const Shape& shape) {
  Global("torch", "Size");
  Mark();
  ShapeTuple(shape);
  Tuple();
  Reduce();
}

std::string_view TorchName(Dtype dtype) {
  const TorchDtype* const found = Find(dtype);
  return found == nullptr ? std::string_view() : found->name;
}

void AddTensor(Dtype dtype, const Shape& shape, std::string_view storage, PickleWriter& out) {
  const TorchDtype& type = *Find(dtype);
  const bool typed = !type.storage.empty();
  Shape counted = shape;
  if (dtype == Dtype::kF4) counted.back() /= 2;  // torch counts pairs
  Shape strides(counted.size());
  uint64_t elements = 1;
  for (size_t dim = counted.size(); dim-- > 0;) {
    strides[dim] = elements;
    // Extents of 0 count as 1 here, as in torch.
    elements *= std::max<uint64_t>(1, counted[dim]);
  }
  const uint64_t size = ElementCount(counted);
  const uint32_t bytes = dtype == Dtype::kF4 ? 1 : BitsOf(dtype) / 8;
  out.Global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.Mark();
  out.Mark();
  out.Text("storage");
  if (typed) {
    out.Global("torch", type.storage);
  } else {
    out.Global("torch.storage", "UntypedStorage");
  }
  out.Text(storage);
  out.Text("cpu");
  out.Int(typed ? size : size * bytes);
  out.Tuple();
  out.PersistentId();
  out.Int(0);
  out.ShapeTuple(counted);
  out.ShapeTuple(strides);
  out.Bool(false);
  out.Global("collections", "OrderedDict");
  out.EmptyTuple();
  out.Reduce();
  if (!typed) out.Global("torch", type.name);
  out.Tuple();
  out.Reduce();
}

}  // namespace ckptd
