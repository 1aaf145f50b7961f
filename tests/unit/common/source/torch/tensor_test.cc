// Tensors as pickles describe them.
#include <optional>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/torch/file.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/torch_writer.h"

namespace ckptd::torch {
namespace {

using pickles::Bool;
using pickles::Call;
using pickles::Dict;
using pickles::Global;
using pickles::Int;
using pickles::Ints;
using pickles::None;
using pickles::OrderedDict;
using pickles::Text;
using pickles::TensorV2;
using pickles::TensorV3;
using pickles::Tuple;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// A file whose root is `root`, with storages "0" of 48 bytes, "1" of 8 and "2" of none.
File FileOf(const std::string& root) {
  MemoryStorage storage;
  storage.Write("/m.pt", TorchZip(root, {{"0", std::string(48, 'a')}, {"1", "12345678"}, {"2", ""}}));
  return ReadFile(storage, "/m.pt").value();
}

absl::StatusOr<std::optional<Tensor>> Described(const std::string& root) {
  const File file = FileOf(root);
  return TensorOf(file, *file.document.root);
}

std::string Floats() { return pickles::Storage("Float", "0", 12); }

TEST(TensorOf, DescribesAViewOfItsStorage) {
  const File file = FileOf(TensorV2(Floats(), 2, {2, 3}, {1, 2}));
  ASSERT_OK_AND_ASSIGN(const auto tensor, TensorOf(file, *file.document.root));
  ASSERT_TRUE(tensor.has_value());
  EXPECT_EQ(tensor->dtype, Dtype::kF32);
  EXPECT_EQ(tensor->shape, (Shape{2, 3}));
  EXPECT_EQ(tensor->strides, (Shape{1, 2}));
  EXPECT_EQ(tensor->offset, file.storages.at("0").offset + 8);
  EXPECT_FALSE(tensor->is_parameter);
  const Piece piece = PieceOf(*tensor, 7);
  EXPECT_EQ(piece.file, 7u);
  EXPECT_EQ(piece.bytes, 24u);
  EXPECT_EQ(piece.box.extents, tensor->shape);
}

TEST(TensorOf, HasNoStridesInCOrder) {
  for (const Shape& strides : {Shape{3, 1}, Shape{3, 1}}) {
    ASSERT_OK_AND_ASSIGN(const auto tensor, Described(TensorV2(Floats(), 0, {2, 3}, strides)));
    EXPECT_EQ(tensor->strides, Shape());
  }
  ASSERT_OK_AND_ASSIGN(const auto one, Described(TensorV2(Floats(), 0, {1, 3}, {77, 1})));
  EXPECT_EQ(one->strides, Shape());
}

TEST(TensorOf, KnowsEveryWayToRebuildOne) {
  const std::vector<std::string> arguments = {Floats(), Int(0), Ints({12}), Ints({1})};
  const std::string plain = TensorV2(Floats(), 0, {12}, {1});
  const std::string type_v2 = Call(Global("torch._tensor", "_rebuild_from_type_v2"),
                                   {Global("torch._utils", "_rebuild_tensor_v2"),
                                    Global("torch", "Tensor"),
                                    Tuple({Floats(), Int(0), Ints({12}), Ints({1}), Bool(false),
                                           OrderedDict()}),
                                    Dict({{Text("note"), Int(1)}})});
  for (const std::string& root :
       {plain, type_v2, Call(Global("torch._utils", "_rebuild_tensor"), arguments),
        Call(Global("torch._utils", "_rebuild_parameter"), {plain, Bool(true), OrderedDict()}),
        Call(Global("torch._utils", "_rebuild_parameter_with_state"),
             {type_v2, Bool(true), OrderedDict(), Dict({})}),
        Call(Global("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
             {plain, Global("torch", "float32"), Text("xla:0"), Bool(false)})}) {
    ASSERT_OK_AND_ASSIGN(const auto tensor, Described(root));
    ASSERT_TRUE(tensor.has_value()) << root;
    EXPECT_EQ(tensor->shape, Shape{12});
    EXPECT_EQ(tensor->wrapper, "");
    EXPECT_EQ(tensor->is_parameter, root.find("_rebuild_parameter") != std::string::npos);
  }
}

TEST(TensorOf, NamesTheSubclassOfATensor) {
  const std::string root = Call(Global("torch._tensor", "_rebuild_from_type_v2"),
                                {Global("torch._utils", "_rebuild_tensor_v2"),
                                 Global("mine", "Tensor"),
                                 Tuple({Floats(), Int(0), Ints({12}), Ints({1}), Bool(false),
                                        OrderedDict()}),
                                 Dict({})});
  ASSERT_OK_AND_ASSIGN(const auto tensor, Described(root));
  EXPECT_EQ(tensor->wrapper, "mine.Tensor");
}

TEST(TensorOf, KnowsWhatIsNone) {
  for (const std::string& root :
       {Int(1), OrderedDict(), Floats(), Call(Global("mine", "f"), {Floats()}),
        Call(Global("torch._utils", "_rebuild_wrapper_subclass"), {Global("mine", "Tensor")})}) {
    EXPECT_EQ(Described(root).value(), std::nullopt) << root;
  }
}

struct TypedStorage {
  const char* kind;
  uint64_t elements;  // of 48 bytes
  Dtype dtype;
};
class StorageOfDtype : public testing::TestWithParam<TypedStorage> {};
TEST_P(StorageOfDtype, SaysItsTensors) {
  const auto& [kind, elements, dtype] = GetParam();
  ASSERT_OK_AND_ASSIGN(
      const auto tensor,
      Described(TensorV2(pickles::Storage(kind, "0", elements), 0, {elements}, {1})));
  EXPECT_EQ(tensor->dtype, dtype);
}
INSTANTIATE_TEST_SUITE_P(
    All, StorageOfDtype,
    testing::Values(TypedStorage{"Double", 6, Dtype::kF64}, TypedStorage{"Half", 24, Dtype::kF16},
                    TypedStorage{"BFloat16", 24, Dtype::kBF16}, TypedStorage{"Long", 6, Dtype::kI64},
                    TypedStorage{"Int", 12, Dtype::kI32}, TypedStorage{"Short", 24, Dtype::kI16},
                    TypedStorage{"Char", 48, Dtype::kI8}, TypedStorage{"Byte", 48, Dtype::kU8},
                    TypedStorage{"Bool", 48, Dtype::kBool},
                    TypedStorage{"ComplexFloat", 6, Dtype::kC64},
                    TypedStorage{"ComplexDouble", 3, Dtype::kC128}),
    [](const auto& one) { return one.param.kind; });

struct UntypedDtype {
  const char* name;
  uint64_t elements;
  Dtype dtype;
};
class DtypeInAnUntypedStorage : public testing::TestWithParam<UntypedDtype> {};
TEST_P(DtypeInAnUntypedStorage, IsThatOfTheTensor) {
  const auto& [name, elements, dtype] = GetParam();
  ASSERT_OK_AND_ASSIGN(const auto tensor,
                       Described(TensorV3("0", 48, 0, {elements}, {1}, name)));
  EXPECT_EQ(tensor->dtype, dtype);
  EXPECT_EQ(PieceOf(*tensor, 0).bytes, 48u);
  EXPECT_THAT(Described(TensorV3("0", 48, 0, {elements + 1}, {1}, name)),
              FailsWith(kDataLoss, reason::kSourceInvalid));
}
INSTANTIATE_TEST_SUITE_P(
    All, DtypeInAnUntypedStorage,
    testing::Values(UntypedDtype{"uint16", 24, Dtype::kU16}, UntypedDtype{"uint32", 12, Dtype::kU32},
                    UntypedDtype{"uint64", 6, Dtype::kU64}, UntypedDtype{"complex32", 12, Dtype::kC32},
                    UntypedDtype{"float8_e4m3fn", 48, Dtype::kF8E4M3},
                    UntypedDtype{"float8_e5m2", 48, Dtype::kF8E5M2},
                    UntypedDtype{"float8_e4m3fnuz", 48, Dtype::kF8E4M3Fnuz},
                    UntypedDtype{"float8_e5m2fnuz", 48, Dtype::kF8E5M2Fnuz},
                    UntypedDtype{"float8_e8m0fnu", 48, Dtype::kF8E8M0},
                    UntypedDtype{"bits8", 48, Dtype::kBits8},
                    UntypedDtype{"bits16", 24, Dtype::kBits16}),
    [](const auto& one) { return one.param.name; });

TEST(TensorOf, CountsTheElementsOfPackedNumbers) {
  ASSERT_OK_AND_ASSIGN(const auto tensor,
                       Described(TensorV3("0", 48, 0, {6, 8}, {8, 1}, "float4_e2m1fn_x2")));
  EXPECT_EQ(tensor->dtype, Dtype::kF4);
  EXPECT_EQ(tensor->shape, (Shape{6, 16}));
  EXPECT_EQ(PieceOf(*tensor, 0).bytes, 48u);
  for (const auto& [shape, strides] :
       {std::pair(Shape{6, 8}, Shape{1, 6}), std::pair(Shape{}, Shape{})}) {
    EXPECT_THAT(Described(TensorV3("0", 48, 0, shape, strides, "float4_e2m1fn_x2")),
                FailsWith(kUnimplemented, reason::kSourceUnsupported));
  }
}

TEST(TensorOf, KnowsConjugatedAndNegatedViews) {
  const std::string complex = pickles::Storage("ComplexFloat", "0", 6);
  const auto with = [](const std::string& storage, const char* key) {
    return TensorV2(storage, 0, {6}, {1}, {Dict({{Text(key), Bool(true)}})});
  };
  EXPECT_TRUE(Described(with(complex, "conj")).value()->conjugated);
  EXPECT_TRUE(Described(with(Floats(), "neg")).value()->negated);
  EXPECT_FALSE(Described(with(Floats(), "other")).value()->negated);
  EXPECT_THAT(Described(with(pickles::Storage("Int", "0", 12), "neg")),
              FailsWith(kUnimplemented, reason::kSourceUnsupported));
}

TEST(TensorOf, TakesSignsAsPythonTakesNumbersForTrue) {
  const auto with = [](const std::string& value) {
    return Described(TensorV2(Floats(), 0, {12}, {1}, {Dict({{Text("neg"), value}})}));
  };
  EXPECT_TRUE(with(Int(1)).value()->negated);
  EXPECT_TRUE(with(pickles::Float("0.5")).value()->negated);
  EXPECT_FALSE(with(Int(0)).value()->negated);
  EXPECT_FALSE(with(None()).value()->negated);
  EXPECT_THAT(with(Text("yes")), FailsWith(kDataLoss, reason::kSourceInvalid));
}

TEST(TensorOf, RefusesTensorsThatTheirFileChanges) {
  const std::string plain = TensorV2(Floats(), 0, {12}, {1});
  const std::string state = Dict({{Text("data"), TensorV2(Floats(), 4, {2}, {1})}});
  for (const std::string& root :
       {plain + Tuple({Floats(), Int(1), Ints({2}), Ints({1})}) + "b", plain + Int(0) + Int(7) + "s",
        plain + Int(7) + "a",
        Call(Global("torch._utils", "_rebuild_parameter"),
             {plain + Dict({}) + "b", Bool(true), OrderedDict()}),
        Call(Global("torch._utils", "_rebuild_parameter_with_state"),
             {plain, Bool(true), OrderedDict(), state}),
        Call(Global("torch._utils", "_rebuild_tensor"),
             {Floats(), Int(0), pickles::List({Int(12)}), Ints({1})}),
        Call(Global("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
             {plain, Global("torch", "int32"), Text("xla:0"), Bool(false)})}) {
    EXPECT_THAT(Described(root), FailsWith(kUnimplemented, reason::kSourceUnsupported)) << root;
  }
}

TEST(TensorOf, TakesEmptyTensorsWhereverTheyLie) {
  for (const std::string& root :
       {TensorV2(pickles::Storage("Float", "2", 0), 0, {0}, {1}),
        TensorV2(pickles::Storage("Float", "missing", 0), 9, {3, 0}, {1, 1}),
        TensorV2(Floats(), 1000, {0, 1000}, {1000, 1})}) {
    ASSERT_OK_AND_ASSIGN(const auto tensor, Described(root));
    EXPECT_EQ(PieceOf(*tensor, 0).bytes, 0u);
  }
}

TEST(TensorOf, TakesPartsOfStorages) {
  const auto part = [](uint64_t first, uint64_t count) {
    return pickles::Storage("Float", "0", 12, {Tuple({Text("v"), Int(static_cast<int64_t>(first)),
                                                      Int(static_cast<int64_t>(count))})});
  };
  const File file = FileOf(TensorV2(part(4, 3), 1, {2}, {1}));
  ASSERT_OK_AND_ASSIGN(const auto tensor, TensorOf(file, *file.document.root));
  EXPECT_EQ(tensor->offset, file.storages.at("0").offset + 20);
  for (const auto& root :
       {TensorV2(part(4, 3), 2, {2}, {1}), TensorV2(part(11, 2), 0, {1}, {1}),
        TensorV2(part(13, 0), 0, {0}, {1}), TensorV2(part(uint64_t{1} << 62, 1), 0, {1}, {1})}) {
    EXPECT_THAT(Described(root), FailsWith(kDataLoss, reason::kSourceInvalid));
  }
}

struct Case {
  const char* name;
  std::string root;
  const char* says;
};
std::string NameOfCase(const testing::TestParamInfo<Case>& one) { return one.param.name; }

class OtherTensor : public testing::TestWithParam<Case> {};
TEST_P(OtherTensor, IsNamedByItsKind) {
  EXPECT_THAT(Described(GetParam().root),
              testing::AllOf(FailsWith(kUnimplemented, reason::kSourceUnsupported),
                             Says(GetParam().says)));
}
INSTANTIATE_TEST_SUITE_P(
    All, OtherTensor,
    testing::Values(
        Case{"Sparse", Call(Global("torch._utils", "_rebuild_sparse_tensor"), {}), "sparse"},
        Case{"Quantised", Call(Global("torch._utils", "_rebuild_qtensor"), {}), "quantised"},
        Case{"Nested", Call(Global("torch._utils", "_rebuild_nested_tensor"), {}), "nested"},
        Case{"Meta", Call(Global("torch._utils", "_rebuild_meta_tensor_no_storage"), {}), "no data"},
        Case{"SparseParameter",
             Call(Global("torch._utils", "_rebuild_parameter"),
                  {Call(Global("torch._utils", "_rebuild_sparse_tensor"), {}), Bool(true),
                   OrderedDict()}),
             "sparse"},
        Case{"UnknownStorage", TensorV2(pickles::Storage("QInt8", "0", 48), 0, {1}, {1}),
             "QInt8Storage"},
        Case{"UnknownDtype", TensorV3("0", 48, 0, {1}, {1}, "bits4x2"), "torch.bits4x2"},
        Case{"ADtypeThatIsCalled",
             Call(Global("torch._utils", "_rebuild_tensor_v3"),
                  {Floats(), Int(0), Ints({1}), Ints({1}), Bool(false), OrderedDict(),
                   Call(Global("mine", "dtype"), {})}),
             "dtype"}),
    NameOfCase);

constexpr uint64_t kHuge = uint64_t{1} << 62;

class DamagedTensor : public testing::TestWithParam<Case> {};
TEST_P(DamagedTensor, IsRefused) {
  const auto tensor = Described(GetParam().root);
  EXPECT_THAT(tensor, testing::AllOf(FailsWith(kDataLoss, reason::kSourceInvalid),
                                     Says(GetParam().says)));
  EXPECT_EQ(FactsOf(tensor.status())["file"], "/m.pt");
}
INSTANTIATE_TEST_SUITE_P(
    All, DamagedTensor,
    testing::Values(
        Case{"PastTheEnd", TensorV2(Floats(), 0, {13}, {1}), "leaves its storage"},
        Case{"OffsetPastTheEnd", TensorV2(Floats(), 12, {1}, {1}), "leaves its storage"},
        Case{"StridePastTheEnd", TensorV2(Floats(), 0, {2}, {12}), "leaves its storage"},
        Case{"OffsetThatWraps", TensorV2(Floats(), INT64_MAX, {kHuge}, {4}), "leaves its storage"},
        Case{"StrideThatWraps", TensorV2(Floats(), 0, {3}, {kHuge * 2 - 1}), "leaves its storage"},
        Case{"TooManyElements", TensorV2(Floats(), 0, {kHuge, 8}, {0, 0}), "64 bits"},
        Case{"TooManyBytes", TensorV2(Floats(), 0, {kHuge}, {0}), "64 bits"},
        Case{"MissingStorage", TensorV2(pickles::Storage("Float", "9", 1), 0, {1}, {1}),
             "is missing"},
        Case{"LyingStorage", TensorV2(pickles::Storage("Float", "0", 13), 0, {1}, {1}),
             "48 bytes, not the 52"},
        Case{"HugeStorage", TensorV2(pickles::Storage("Double", "0", kHuge), 0, {1}, {1}),
             "2^64 bytes"},
        Case{"NoStorage", TensorV2(None(), 0, {1}, {1}), "no storage"},
        Case{"AModuleForAStorage",
             TensorV2(Tuple({Text("module"), None(), Text("a"), Text("b"), Int(1)}) + "Q", 0, {1},
                      {1}),
             "no storage"},
        Case{"MoreStridesThanSizes", TensorV2(Floats(), 0, {2}, {1, 1}), "sizes"},
        Case{"NegativeSize",
             Call(Global("torch._utils", "_rebuild_tensor"),
                  {Floats(), Int(0), Tuple({Int(-1)}), Ints({1})}),
             "sizes"},
        Case{"NegativeOffset",
             Call(Global("torch._utils", "_rebuild_tensor"),
                  {Floats(), Int(-1), Ints({1}), Ints({1})}),
             "sizes"},
        Case{"TooManyDimensions", TensorV2(Floats(), 0, Shape(65, 1), Shape(65, 1)), "sizes"},
        Case{"TooFewArguments", Call(Global("torch._utils", "_rebuild_tensor_v2"), {Floats()}),
             "too short"}),
    NameOfCase);

TEST(TensorOf, TakesAsManyDimensionsAsOthersHave) {
  EXPECT_OK(Described(TensorV2(Floats(), 0, Shape(64, 1), Shape(64, 1))));
}

TEST(TensorOf, ReadsPersistentIdsOfProtocol0) {
  const auto with = [](const std::string& id) {
    return Call(Global("torch._utils", "_rebuild_tensor"),
                {"P" + id + "\n", Int(0), Ints({12}), Ints({1})});
  };
  const std::string good = "('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 12)";
  ASSERT_OK_AND_ASSIGN(const auto tensor, Described(with(good)));
  EXPECT_EQ(tensor->shape, Shape{12});
  for (size_t cut = 1; cut < good.size(); ++cut) {
    EXPECT_FALSE(Described(with(good.substr(0, cut))).ok()) << cut;
  }
}

}  // namespace
}  // namespace ckptd::torch
