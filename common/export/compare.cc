#include "common/export/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>

#include "common/base/status.h"
#include "common/cast/cast.h"
#include "common/export/tensor_stream.h"

namespace ckptd {
namespace {

using Bytes = std::span<const std::byte>;

// A tensor's bytes, as many at a time as are asked for.
class Reader {
 public:
  Reader(OpenFiles& files, const TensorEntry& tensor) : stream_(files, tensor, tensor.dtype) {}

  // The bytes at hand; empty at the end.
  absl::StatusOr<Bytes> Peek() {
    if (left_.empty()) {
      CKPTD_ASSIGN_OR_RETURN(left_, stream_.Next());
    }
    return left_;
  }
  void Take(size_t bytes) { left_ = left_.subspan(bytes); }

 private:
  TensorStream stream_;
  Bytes left_;
};

template <typename T>
T At(Bytes bytes, size_t i) {
  T out;
  std::memcpy(&out, bytes.data() + i * sizeof(T), sizeof(T));
  return out;
}

template <typename T>
double DifferenceAt(Bytes a, Bytes b, size_t i) {
  const T x = At<T>(a, i);
  const T y = At<T>(b, i);
  if constexpr (std::is_floating_point_v<T>) return std::abs(x - y);
  return x > y ? static_cast<double>(x) - static_cast<double>(y)
               : static_cast<double>(y) - static_cast<double>(x);
}

// By how much two integers of that dtype differ; nullopt: it is none of integers.
std::optional<double> IntegerDifference(Dtype dtype, Bytes a, Bytes b, size_t i) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kU8: return DifferenceAt<uint8_t>(a, b, i);
    case Dtype::kI8: return DifferenceAt<int8_t>(a, b, i);
    case Dtype::kU16: return DifferenceAt<uint16_t>(a, b, i);
    case Dtype::kI16: return DifferenceAt<int16_t>(a, b, i);
    case Dtype::kU32: return DifferenceAt<uint32_t>(a, b, i);
    case Dtype::kI32: return DifferenceAt<int32_t>(a, b, i);
    case Dtype::kU64: return DifferenceAt<uint64_t>(a, b, i);
    case Dtype::kI64: return DifferenceAt<int64_t>(a, b, i);
    default: return std::nullopt;
  }
}

// Compares two tensors that have a name and a shape in common.
class TensorComparer {
 public:
  TensorComparer(const TensorEntry& a, const TensorEntry& b, TensorDifference& out)
      : a_(a), b_(b), numbers_(IsCastable(a.dtype) && IsCastable(b.dtype)), out_(out) {}

  absl::Status Run(OpenFiles& files_a, OpenFiles& files_b, const OnWritten& on_read) {
    if (a_.dtype != b_.dtype && !numbers_) return absl::OkStatus();
    Reader read_a(files_a, a_);
    Reader read_b(files_b, b_);
    const size_t size_a = std::max<size_t>(1, BitsOf(a_.dtype) / 8);
    const size_t size_b = std::max<size_t>(1, BitsOf(b_.dtype) / 8);
    for (;;) {
      CKPTD_ASSIGN_OR_RETURN(const Bytes a, read_a.Peek());
      CKPTD_ASSIGN_OR_RETURN(const Bytes b, read_b.Peek());
      if (a.empty() || b.empty()) return absl::OkStatus();
      const size_t n = std::min({a.size() / size_a, b.size() / size_b, kAtATime});
      Block(a.first(n * size_a), b.first(n * size_b), n);
      read_a.Take(n * size_a);
      read_b.Take(n * size_b);
      if (on_read != nullptr && !on_read(n * size_a)) {
        return absl::CancelledError("comparing was stopped");
      }
    }
  }

 private:
  static constexpr size_t kAtATime = size_t{1} << 18;  // elements

  void Block(Bytes a, Bytes b, size_t n) {
    const bool same_dtype = a_.dtype == b_.dtype;
    if (same_dtype && std::memcmp(a.data(), b.data(), a.size()) == 0) return;
    if (numbers_) {
      x_.resize(n);
      y_.resize(n);
      Cast(a_.dtype, Dtype::kF64, a.data(), reinterpret_cast<std::byte*>(x_.data()), n);
      Cast(b_.dtype, Dtype::kF64, b.data(), reinterpret_cast<std::byte*>(y_.data()), n);
    }
    const size_t size = a.size() / n;
    for (size_t i = 0; i < n; ++i) {
      const bool same = same_dtype ? std::memcmp(a.data() + i * size, b.data() + i * size, size) == 0
                                   : IsSameNumber(x_[i], y_[i]);
      if (!same) Count(a, b, i);
    }
  }

  static bool IsSameNumber(double x, double y) {
    return x == y || (std::isnan(x) && std::isnan(y));
  }

  void Count(Bytes a, Bytes b, size_t i) {
    ++out_.elements;
    std::optional<double> by = IntegerDifference(a_.dtype, a, b, i);
    if (numbers_) by = IsSameNumber(x_[i], y_[i]) ? 0 : std::abs(x_[i] - y_[i]);
    if (!by.has_value()) return;
    out_.has_largest = true;
    if (std::isnan(*by) || std::isnan(out_.largest)) {
      out_.largest = std::numeric_limits<double>::quiet_NaN();
    } else {
      out_.largest = std::max(out_.largest, *by);
    }
  }

  const TensorEntry& a_;
  const TensorEntry& b_;
  const bool numbers_;
  TensorDifference& out_;
  std::vector<double> x_;
  std::vector<double> y_;
};

using Named = std::map<std::string, const TensorEntry*>;

Named NamesOf(const Content& content) {
  Named names;
  for (const OutTensor& tensor : content.tensors) {
    names[tensor.name] = tensor.from;
    for (const std::string& alias : tensor.aliases) names[alias] = tensor.from;
  }
  return names;
}

}  // namespace

std::string_view NameOf(TensorDifference::Kind kind) {
  switch (kind) {
    case TensorDifference::Kind::kMissing: return "missing";
    case TensorDifference::Kind::kExtra: return "extra";
    case TensorDifference::Kind::kShape: return "shape";
    case TensorDifference::Kind::kDtype: return "dtype";
    case TensorDifference::Kind::kValues: return "values";
  }
  return "";
}

absl::StatusOr<Comparison> Compare(const Content& a, const Content& b, const OnWritten& on_read) {
  Comparison out;
  const Named names_a = NamesOf(a);
  const Named names_b = NamesOf(b);
  OpenFiles files_a(*a.index);
  OpenFiles files_b(*b.index);
  for (const auto& [name, tensor] : names_a) {
    const auto other = names_b.find(name);
    TensorDifference found{.name = name, .a = tensor};
    if (other == names_b.end()) {
      found.kind = TensorDifference::Kind::kMissing;
      out.differences.push_back(found);
      continue;
    }
    found.b = other->second;
    ++out.tensors;
    if (tensor->shape != found.b->shape) {
      found.kind = TensorDifference::Kind::kShape;
    } else {
      if (tensor->dtype != found.b->dtype) found.kind = TensorDifference::Kind::kDtype;
      CKPTD_RETURN_IF_ERROR(
          TensorComparer(*tensor, *found.b, found).Run(files_a, files_b, on_read));
      for (const Piece& piece : tensor->pieces) out.bytes += piece.bytes;
    }
    if (found.kind != TensorDifference::Kind::kValues || found.elements > 0) {
      out.differences.push_back(found);
    }
  }
  for (const auto& [name, tensor] : names_b) {
    if (names_a.count(name) != 0) continue;
    out.differences.push_back(
        {.name = name, .kind = TensorDifference::Kind::kExtra, .b = tensor});
  }
  std::stable_sort(out.differences.begin(), out.differences.end(),
                   [](const auto& x, const auto& y) { return x.name < y.name; });
  return out;
}

}  // namespace ckptd
