// Tensors as pickles describe them: calls of torch's functions that would rebuild them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "common/base/checked_math.h"
#include "common/base/digest.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/piece.h"
#include "common/source/text.h"
#include "common/source/torch/dtypes.h"
#include "common/source/torch/file.h"
#include "common/source/torch/storage_id.h"

namespace ckptd::torch {
namespace {

using pickle::Items;
using pickle::Kind;
using pickle::Value;

// Parameters of tensors of devices of ...: real ones have two.
constexpr int kMostWrappers = 8;

constexpr std::string_view kFromType = "torch._tensor._rebuild_from_type_v2";

absl::Status Refused(const File& file, const std::string& why) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported, why,
                   {{"file", file.file.path}});
}

absl::Status Damaged(const File& file, const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   why + "; save or copy the file again", {{"file", file.file.path}});
}

std::string Shown(std::string_view symbol) { return Escape(symbol.substr(0, 200)); }

// A call of a function by its name.
struct Call {
  std::string_view function;
  Items arguments;
};

Call CallOf(const Value& value) {
  return value.is(Kind::kRecord) ? Call{value.callee()->text(), value.items()} : Call{};
}

bool IsParameter(std::string_view function) {
  return function == "torch._utils._rebuild_parameter" ||
         function == "torch._utils._rebuild_parameter_with_state";
}

bool IsMoved(std::string_view function) {
  return function == "torch._utils._rebuild_device_tensor_from_cpu_tensor";
}

// Why a tensor that this function rebuilds is not read: it ends "it is ...".
std::string_view OtherKind(std::string_view function) {
  constexpr auto kKinds = std::to_array<std::pair<std::string_view, std::string_view>>(
      {{"_rebuild_sparse_tensor", "a sparse tensor; save its to_dense()"},
       {"_rebuild_sparse_csr_tensor", "a sparse tensor; save its to_dense()"},
       {"_rebuild_qtensor", "a quantised tensor; save its dequantize(), or its int_repr() and scales"},
       {"_rebuild_nested_tensor", "a nested tensor; save the tensors in it one by one"},
       {"_rebuild_meta_tensor_no_storage", "a meta tensor, which has no data; save real ones"},
       {"_rebuild_device_tensor_from_numpy", "a numpy array of another device; save its cpu()"}});
  constexpr std::string_view kModule = "torch._utils.";
  if (!function.starts_with(kModule)) return {};
  function.remove_prefix(kModule.size());
  const auto at = std::find_if(kKinds.begin(), kKinds.end(),
                               [function](const auto& kind) { return kind.first == function; });
  return at == kKinds.end() ? std::string_view() : at->second;
}

// The elements that a tensor is a view of.
struct StorageView {
  std::string key;
  Dtype dtype = Dtype::kUnspecified;  // U8 also of untyped storages
  uint64_t offset = 0;                // in the file, in bytes
  uint64_t bytes = 0;
  uint32_t crc32 = 0;  // of all of it; 0: not known
};

// Finds the storage in the file that the key of a persistent id names.
absl::Status Locate(const File& file, std::string_view key, uint64_t bytes, StorageView& out) {
  out.key = key;
  out.bytes = bytes;
  const auto found = file.storages.find(key);
  if (found == file.storages.end()) {
    if (bytes == 0) return absl::OkStatus();
    return Damaged(file, fmt::format("its storage {} is missing", Quoted(Escape(key))));
  }
  if (found->second.is_deflated && bytes > 0) {
    return Refused(file, "it is compressed within its file, where no bytes of it can be read in "
                         "place; save the file again by torch.save");
  }
  if (found->second.bytes != bytes && !found->second.is_deflated) {
    return Damaged(file, fmt::format("its storage {} has {} bytes, not the {} that it needs",
                                     Quoted(Escape(key)), found->second.bytes, bytes));
  }
  out.offset = found->second.offset;
  out.crc32 = found->second.crc32;
  return absl::OkStatus();
}

// Storages that are parts of others, as torch before 1.6 knew them: (key, first element, elements).
absl::Status NarrowTo(const File& file, const Value& part, uint64_t element, StorageView& out) {
  const Items items = part.items();
  const bool is_part = part.is(Kind::kTuple) && items.size() == 3;
  const auto first = is_part ? SizeOf(*items[1]) : std::nullopt;
  const auto count = is_part ? SizeOf(*items[2]) : std::nullopt;
  const auto begin = first.has_value() ? CheckedMultiply(*first, element) : std::nullopt;
  const auto bytes = count.has_value() ? CheckedMultiply(*count, element) : std::nullopt;
  if (!begin.has_value() || !bytes.has_value() || *begin > out.bytes ||
      *bytes > out.bytes - *begin) {
    return Damaged(file, "it lies in a part of a storage that the storage does not have");
  }
  out.offset += *begin;
  out.bytes = *bytes;
  return absl::OkStatus();
}

// The elements that a persistent id names.
absl::StatusOr<StorageView> StorageOf(const File& file, const Value& value) {
  const std::optional<StorageId> id = StorageIdOf(value);
  if (!id.has_value()) return Damaged(file, "it has no storage");
  const std::optional<Dtype> dtype = DtypeOfStorage(id->symbol);
  if (!dtype.has_value()) {
    return Refused(file, fmt::format("it is of a {}, which is not read; save it in another dtype",
                                     Shown(id->symbol)));
  }
  StorageView out;
  out.dtype = *dtype;
  const auto bytes = CheckedBytes(id->elements, BitsOf(*dtype));
  if (!bytes.has_value()) return Damaged(file, "it has a storage of more than 2^64 bytes");
  CKPTD_RETURN_IF_ERROR(Locate(file, id->key, *bytes, out));
  if (id->part == nullptr) return out;
  CKPTD_RETURN_IF_ERROR(NarrowTo(file, *id->part, BitsOf(*dtype) / 8, out));
  return out;
}

// Bytes of an element as torch counts them: a pair of F4.
uint64_t ElementBytes(Dtype dtype) { return std::max<uint64_t>(BitsOf(dtype) / 8, 1); }

// Puts a tensor of `out`'s dtype, shape and strides into its storage, `first` elements from its
// begin.
absl::Status Place(const File& file, const StorageView& storage, uint64_t first, Tensor& out) {
  const uint64_t element = ElementBytes(out.dtype);
  out.storage = storage.key;
  out.offset = storage.offset;
  const bool is_empty = std::find(out.shape.begin(), out.shape.end(), 0) != out.shape.end();
  if (!is_empty) {
    std::optional<uint64_t> end = CheckedAdd(first, 1);
    for (size_t dim = 0; dim < out.shape.size() && end.has_value(); ++dim) {
      const auto steps = CheckedMultiply(out.shape[dim] - 1, out.strides[dim]);
      end = steps.has_value() ? CheckedAdd(*end, *steps) : std::nullopt;
    }
    if (!end.has_value() || *end > storage.bytes / element) {
      return Damaged(file, "it is a view that leaves its storage");
    }
    out.offset += first * element;
  }
  const auto elements = CheckedElements(out.shape);
  if (!elements.has_value() || !CheckedMultiply(*elements, element).has_value()) {
    return Damaged(file, "it has more bytes than 64 bits count");
  }
  out.strides = CompactStrides(out.shape, std::move(out.strides));
  return absl::OkStatus();
}

// torch counts pairs of F4, everybody else elements.
absl::Status CountElements(const File& file, Tensor& tensor) {
  if (tensor.dtype != Dtype::kF4) return absl::OkStatus();
  if (tensor.shape.empty() || !tensor.strides.empty()) {
    return Refused(file, "it is a view of packed 4-bit numbers; save its contiguous()");
  }
  const auto last = CheckedMultiply(tensor.shape.back(), 2);
  if (!last.has_value()) return Damaged(file, "it has more elements than 64 bits count");
  tensor.shape.back() = *last;
  return absl::OkStatus();
}

// Tensor::content of a tensor that begins `first` elements behind the begin of its storage.
uint64_t ContentOf(const StorageView& storage, uint64_t first, const Tensor& tensor) {
  if (storage.crc32 == 0) return 0;
  std::vector<uint64_t> all = {storage.crc32, storage.bytes, first, tensor.conjugated ? 1U : 0U,
                               tensor.negated ? 1U : 0U};
  all.insert(all.end(), tensor.strides.begin(), tensor.strides.end());
  return Xxh3(std::as_bytes(std::span(all)));
}

// What Python's bool() gives for a number or nothing; nullopt: torch takes nothing else here.
std::optional<bool> TruthOf(const Value* value) {
  if (value == nullptr || value->is(Kind::kNone)) return false;
  const bool is_number = value->is(Kind::kBool) || value->is(Kind::kInt) ||
                         value->is(Kind::kFloat) || value->is(Kind::kBigInt);
  if (!is_number) return std::nullopt;
  return value->is(Kind::kBigInt) || value->integer() != 0 || value->real() != 0;
}

absl::Status ReadSigns(const File& file, const Value& metadata, Tensor& out) {
  const std::optional<bool> conjugated = TruthOf(metadata.Get("conj"));
  const std::optional<bool> negated = TruthOf(metadata.Get("neg"));
  if (!conjugated.has_value() || !negated.has_value()) {
    return Damaged(file, "its metadata is none that a tensor can have");
  }
  out.conjugated = *conjugated;
  out.negated = *negated;
  if ((out.negated || out.conjugated) && !HasSigns(out.dtype)) {
    return Refused(file, "it is a negated view of numbers that have no sign bit; save its "
                         "resolve_neg()");
  }
  return absl::OkStatus();
}

// _rebuild_tensor(storage, offset, size, stride), _v2 with (..., requires_grad, hooks, metadata)
// and _v3 with (..., requires_grad, hooks, dtype, metadata).
absl::StatusOr<Tensor> Rebuild(const File& file, Items arguments, bool has_dtype) {
  if (arguments.size() < (has_dtype ? 7U : 4U)) return Damaged(file, "its description is too short");
  CKPTD_ASSIGN_OR_RETURN(const StorageView storage, StorageOf(file, *arguments[0]));
  Tensor out;
  out.dtype = storage.dtype;
  if (has_dtype) {
    const std::optional<Dtype> dtype = DtypeOf(arguments[6]->text());
    if (!arguments[6]->is(Kind::kSymbol) || !dtype.has_value()) {
      return Refused(file, fmt::format("it is of dtype {}, which is not read; save it in another one",
                                       Shown(arguments[6]->text())));
    }
    out.dtype = *dtype;
  }
  if (arguments[2]->is(Kind::kList) || arguments[3]->is(Kind::kList)) {
    return Refused(file, "its sizes are in a list, which could be changed later; save it anew");
  }
  const std::optional<uint64_t> first = SizeOf(*arguments[1]);
  std::optional<Shape> shape = SizesOf(*arguments[2]);
  std::optional<Shape> strides = SizesOf(*arguments[3]);
  if (!first.has_value() || !shape.has_value() || !strides.has_value() ||
      shape->size() != strides->size()) {
    return Damaged(file, "its sizes are none that a tensor can have");
  }
  out.shape = *std::move(shape);
  out.strides = *std::move(strides);
  CKPTD_RETURN_IF_ERROR(Place(file, storage, *first, out));
  CKPTD_RETURN_IF_ERROR(CountElements(file, out));
  const size_t metadata = has_dtype ? 7 : 6;
  if (arguments.size() > metadata) {
    CKPTD_RETURN_IF_ERROR(ReadSigns(file, *arguments[metadata], out));
  }
  out.content = ContentOf(storage, *first, out);
  return out;
}

bool IsChanged(const Value& value) {
  return value.state() != nullptr || !value.entries().empty() || !value.appended().empty();
}

// Whether `value` is still what it is made of when all calls around it are done.
absl::Status CheckWrappers(const File& file, const Value& value, Dtype dtype) {
  const Value* at = &value;
  for (int i = 0; i <= kMostWrappers; ++i) {
    if (IsChanged(*at)) {
      return Refused(file, "it is changed by its file after it was made; save it anew");
    }
    const Call call = CallOf(*at);
    if (IsMoved(call.function) && (call.arguments.size() < 2 ||
                                   DtypeOf(call.arguments[1]->text()) != dtype)) {
      return Refused(file, "it is turned into another dtype while it is loaded; save its cpu()");
    }
    if (at == &Unwrapped(value)) break;
    at = call.arguments[0];
  }
  for (const Value* attributes : AttributesOf(value)) {
    for (const std::string_view key : {"data", "real", "imag"}) {
      if (attributes->Get(key) == nullptr) continue;
      return Refused(file, "it has an attribute that changes its elements; save it anew");
    }
  }
  return absl::OkStatus();
}

// The call that a tensor of a type with own attributes was made by, in place of the call that adds
// the attributes.
void Enter(Call& call, std::string& wrapper) {
  const Items arguments = call.arguments;
  const bool is_call = call.function == kFromType && arguments.size() == 4 &&
                       arguments[0]->is(Kind::kSymbol) && arguments[1]->is(Kind::kSymbol) &&
                       arguments[2]->is(Kind::kTuple);
  if (!is_call) return;
  const std::string_view type = arguments[1]->text();
  if (!type.starts_with("torch.nn.parameter.") && type != "torch.Tensor" &&
      type != "torch._tensor.Tensor") {
    wrapper = type;
  }
  call = {arguments[0]->text(), arguments[2]->items()};
}

}  // namespace

std::optional<Shape> SizesOf(const Value& value) {
  Shape out;
  if (!value.is(Kind::kTuple) && !value.is(Kind::kList)) return std::nullopt;
  if (value.items().size() > kMaxTensorDims) return std::nullopt;
  for (const Value* item : value.items()) {
    const std::optional<uint64_t> size = SizeOf(*item);
    if (!size.has_value()) return std::nullopt;
    out.push_back(*size);
  }
  return out;
}

const Value& Unwrapped(const Value& value) {
  const Value* at = &value;
  for (int i = 0; i < kMostWrappers; ++i) {
    const Call call = CallOf(*at);
    if ((!IsParameter(call.function) && !IsMoved(call.function)) || call.arguments.empty()) break;
    at = call.arguments[0];
  }
  return *at;
}

std::vector<const Value*> AttributesOf(const Value& tensor) {
  std::vector<const Value*> out;
  const Value& inner = Unwrapped(tensor);
  for (const Value* at = &tensor;; at = at->items()[0]) {
    const Call call = CallOf(*at);
    const bool has_state = call.function == "torch._utils._rebuild_parameter_with_state" ||
                           call.function == kFromType;
    const Value* const state = has_state && call.arguments.size() == 4 ? call.arguments[3] : nullptr;
    if (state != nullptr && state->is(Kind::kDict)) out.push_back(state);
    if (state != nullptr && state->is(Kind::kTuple)) {
      for (const Value* part : state->items()) {
        if (part->is(Kind::kDict)) out.push_back(part);
      }
    }
    if (at == &inner) return out;
  }
}

absl::StatusOr<std::optional<Tensor>> TensorOf(const File& file, const Value& value) {
  Call call = CallOf(Unwrapped(value));
  std::string wrapper;
  Enter(call, wrapper);
  if (const std::string_view kind = OtherKind(call.function); !kind.empty()) {
    return Refused(file, "it is " + std::string(kind));
  }
  const bool has_dtype = call.function == "torch._utils._rebuild_tensor_v3";
  if (!has_dtype && call.function != "torch._utils._rebuild_tensor_v2" &&
      call.function != "torch._utils._rebuild_tensor") {
    return std::nullopt;
  }
  CKPTD_ASSIGN_OR_RETURN(Tensor out, Rebuild(file, call.arguments, has_dtype));
  CKPTD_RETURN_IF_ERROR(CheckWrappers(file, value, out.dtype));
  out.is_parameter = IsParameter(CallOf(value).function);
  out.wrapper = std::move(wrapper);
  return out;
}

Piece PieceOf(const Tensor& tensor, uint32_t number) {
  Piece piece;
  piece.file = number;
  piece.offset = tensor.offset;
  piece.bytes = ElementCount(tensor.shape) * BitsOf(tensor.dtype) / 8;
  piece.box.offsets.assign(tensor.shape.size(), 0);
  piece.box.extents = tensor.shape;
  piece.strides = tensor.strides;
  return piece;
}

}  // namespace ckptd::torch
