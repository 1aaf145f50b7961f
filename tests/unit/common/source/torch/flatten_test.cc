#include "common/source/torch/flatten.h"

#include <map>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/torch_writer.h"

namespace ckptd::torch {
namespace {

using pickles::Bool;
using pickles::Call;
using pickles::Dict;
using pickles::Float;
using pickles::Get;
using pickles::Global;
using pickles::Int;
using pickles::List;
using pickles::None;
using pickles::Object;
using pickles::OrderedDict;
using pickles::Put;
using pickles::Text;
using pickles::TensorV2;
using pickles::Tuple;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

// The `n`-th of some tensors of one element.
std::string T(uint64_t n) { return TensorV2(pickles::Storage("Float", "0", 16), n, {1}, {1}); }

File FileOf(const std::string& root) {
  MemoryStorage storage;
  storage.Write("/m.pt", TorchZip(root, {{"0", std::string(64, 'a')}}));
  return ReadFile(storage, "/m.pt").value();
}

absl::StatusOr<Flattened> FlattenRoot(const std::string& root, const std::string& prefix = "") {
  const File file = FileOf(root);
  return Flatten(file, *file.document.root, prefix);
}

// Name -> which of the tensors.
std::map<std::string, uint64_t> TensorsOf(const Flattened& flat, const File& file) {
  std::map<std::string, uint64_t> out;
  for (const NamedTensor& tensor : flat.tensors) {
    out[tensor.name] = (tensor.tensor.offset - file.storages.at("0").offset) / 4;
  }
  return out;
}

std::map<std::string, uint64_t> TensorsBelow(const std::string& root) {
  const File file = FileOf(root);
  return TensorsOf(Flatten(file, *file.document.root, "").value(), file);
}

TEST(Flatten, NamesNestedContainersByDots) {
  const std::string root = Dict({{Text("model"), OrderedDict({{Text("a.weight"), T(0)}})},
                                 {Text("state"), Dict({{Int(7), Dict({{Text("exp_avg"), T(1)}})}})},
                                 {Text("list"), List({T(2), Tuple({T(3)})})}});
  EXPECT_THAT(TensorsBelow(root), ElementsAre(Pair("list.0", 2), Pair("list.1.0", 3),
                                              Pair("model.a.weight", 0),
                                              Pair("state.7.exp_avg", 1)));
}

TEST(Flatten, NamesKeysAsPythonWritesThem) {
  const std::string root = Dict({{Tuple({Text("a"), Int(1)}), T(0)},
                                 {Float("1.5"), T(1)},
                                 {Bool(true), T(2)},
                                 {None(), T(3)},
                                 {Tuple({Int(1)}), T(4)},
                                 {Object(Global("mine", "Key"), Dict({})), T(5)},
                                 {Float("3.0"), T(6)},
                                 {Call(Global("mine", "Str"), {Text("text")}), T(7)}});
  EXPECT_THAT(TensorsBelow(root),
              ElementsAre(Pair("('a', 1)", 0), Pair("(1,)", 4), Pair("1.5", 1), Pair("3.0", 6),
                          Pair("<mine.Key>", 5), Pair("None", 3), Pair("True", 2),
                          Pair("text", 7)));
}

TEST(Flatten, StartsBelowAPrefix) {
  ASSERT_OK_AND_ASSIGN(const Flattened flat, FlattenRoot(Dict({{Text("a"), T(0)}}), "opt"));
  EXPECT_EQ(flat.tensors.front().name, "opt.a");
}

TEST(Flatten, LeavesOutWhatItIsTold) {
  const File file = FileOf(Dict({{Text("a"), List({T(0)})}, {Text("b"), List({T(1)})}}));
  const pickle::Value* const left_out[] = {file.document.root->Get("a")};
  ASSERT_OK_AND_ASSIGN(const Flattened flat, Flatten(file, *file.document.root, "", left_out));
  EXPECT_THAT(TensorsOf(flat, file), ElementsAre(Pair("b.0", 1)));
}

TEST(Flatten, MakesAliasesOfTheSameElements) {
  const File file = FileOf(Dict({{Text("b"), Put(1, T(0))},
                                 {Text("a"), Get(1)},
                                 {Text("c"), T(0)},
                                 {Text("d"), T(1)}}));
  ASSERT_OK_AND_ASSIGN(const Flattened flat, Flatten(file, *file.document.root, ""));
  EXPECT_THAT(TensorsOf(flat, file), ElementsAre(Pair("b", 0), Pair("d", 1)));
  EXPECT_THAT(flat.aliases, ElementsAre(Pair("a", "b"), Pair("c", "b")));
}

TEST(Flatten, KeepsPlainValuesAsJson) {
  const std::string root = Dict({{Text("lr"), Float("0.001")},
                                 {Text("steps"), Int(-3)},
                                 {Text("ok"), Bool(true)},
                                 {Text("none"), None()},
                                 {Text("text"), Text("a\"b")},
                                 {Text("betas"), Tuple({Float("0.9"), Float("1.0")})},
                                 {Text("nan"), Float("nan")},
                                 {Text("inf"), Float("-inf")},
                                 {Text("dtype"), Global("torch", "float32")},
                                 {Text("empty"), List({})},
                                 {Text("none at all"), Dict({})},
                                 {Text("bytes"), Call(Global("_codecs", "encode"),
                                                      {Text("a\n'"), Text("latin1")})},
                                 {Text("set"), Call(Global("builtins", "set"),
                                                    {List({Int(1), Int(2)})})}});
  ASSERT_OK_AND_ASSIGN(const Flattened flat, FlattenRoot(root));
  EXPECT_THAT(flat.values,
              ElementsAre(Pair("betas.0", "0.9"), Pair("betas.1", "1.0"),
                          Pair("bytes", R"("b'a\\n\\''")"), Pair("dtype", "\"torch.float32\""),
                          Pair("empty", "[]"), Pair("inf", "-Infinity"), Pair("lr", "0.001"),
                          Pair("nan", "NaN"), Pair("none", "null"), Pair("none at all", "{}"),
                          Pair("ok", "true"), Pair("set", "[1, 2]"), Pair("steps", "-3"),
                          Pair("text", R"("a\"b")")));
}

TEST(Flatten, TellsTypesThatNamesAndJsonDoNot) {
  const std::string bytes = Call(Global("_codecs", "encode"), {Text("a\n"), Text("latin1")});
  const File file = FileOf(Dict({{Text("at"), Dict({{Int(3), Text("b")}, {Text("4"), None()}})},
                                 {Text("a.b"), T(0)},
                                 {Tuple({Int(1), Float("0.5")}), bytes},
                                 {Text("betas"), Tuple({Bool(true)})},
                                 {Text("none"), Tuple({})},
                                 {Text("plain"), List({Int(1), Dict({{Text("c"), Int(2)}})})}}));
  ASSERT_OK_AND_ASSIGN(const Flattened flat,
                       Flatten(file, *file.document.root, "", {}, {}, /*with_types=*/true));
  EXPECT_THAT(
      flat.types,
      ElementsAre(Pair("(1, 0.5)", R"("path": [["dict", ["tuple", [1, ["float", "0x1p-1"]]]]], )"
                                   R"("value": ["bytes", "YQo="])"),
                  Pair("a.b", R"("path": [["dict", "a.b"]])"),
                  Pair("at.3", R"("path": [["dict", "at"], ["dict", 3]])"),
                  Pair("at.4", R"("path": [["dict", "at"], ["dict", "4"]])"),
                  Pair("betas.0", R"("path": [["dict", "betas"], ["tuple", 0]])"),
                  Pair("none", R"("path": [["dict", "none"]], "value": ["tuple", []])")));
  std::map<std::string, std::string> values = {{".types.at.3", "the file's own"}};
  AddTypes({{"at.3", R"("path": [])"}, {"at.4", R"("path": [])"}}, "o\"", 0, values);
  AddTypes({{"at.5", R"("path": [])"}}, "", kMaxSourceValues, values);
  EXPECT_THAT(values, ElementsAre(Pair(".types.at.3", "the file's own"),
                                  Pair(".types.at.4", R"({"below": "o\"", "path": []})")));
}

TEST(Flatten, NamesObjectsAndTakesTensorsOutOfThem) {
  const std::string state = Dict({{Text("shadow"), Dict({{Text("w"), T(0)}})},
                                  {Text("decay"), Float("0.9")},
                                  {Text("inner"), Object(Global("mine", "Inner"), Dict({}))}});
  const std::string root = Dict({{Text("ema"), Object(Global("mine", "Ema"), state)},
                                 {Text("point"), Global("mine", "Point") + Tuple({T(1)}) + "\x81"},
                                 {Text("plain"), Object(Global("mine", "Plain"), Dict({}))}});
  const File file = FileOf(root);
  ASSERT_OK_AND_ASSIGN(const Flattened flat, Flatten(file, *file.document.root, ""));
  EXPECT_THAT(flat.opaque, ElementsAre(Pair("ema", "mine.Ema"), Pair("plain", "mine.Plain"),
                                       Pair("point", "mine.Point")));
  EXPECT_THAT(flat.values, IsEmpty());
  EXPECT_THAT(TensorsOf(flat, file), ElementsAre(Pair("ema.shadow.w", 0), Pair("point.0", 1)));
}

TEST(Flatten, FindsTensorsInSlotsKeysAndAppendedItems) {
  const std::string slots = Tuple({None(), Dict({{Text("slot"), T(0)}})});
  const std::string mapping = Call(Global("mine", "Mapping"), {}) +
                              pickles::Entries({{Text("key"), T(1)}});
  const std::string queue = Call(Global("collections", "deque"), {}) +
                            pickles::Group({T(2)}, "e");
  EXPECT_THAT(TensorsBelow(Dict({{Text("s"), Object(Global("mine", "Slotted"), slots)},
                                 {Text("m"), mapping},
                                 {Text("q"), queue}})),
              ElementsAre(Pair("m.key", 1), Pair("q.0", 2), Pair("s.slot", 0)));
}

TEST(Flatten, NamesTheAttributesOfASubclassOfTensor) {
  const std::string wrapper =
      Call(Global("torch._tensor", "_rebuild_from_type_v2"),
           {Global("torch._utils", "_rebuild_wrapper_subclass"), Global("ao", "Int8Tensor"),
            Tuple({Global("ao", "Int8Tensor"), Global("torch", "bfloat16")}),
            Dict({{Text("qdata"), T(0)}, {Text("scale"), T(1)}, {Text("bits"), Int(8)}})});
  const std::string parameter = Call(Global("torch._utils", "_rebuild_parameter"),
                                     {wrapper, Bool(true), OrderedDict()});
  for (const std::string& weight : {wrapper, parameter}) {
    const File file = FileOf(Dict({{Text("0.weight"), weight}}));
    ASSERT_OK_AND_ASSIGN(const Flattened flat, Flatten(file, *file.document.root, ""));
    EXPECT_THAT(TensorsOf(flat, file),
                ElementsAre(Pair("0.weight.qdata", 0), Pair("0.weight.scale", 1)));
    EXPECT_THAT(flat.opaque, ElementsAre(Pair("0.weight", "ao.Int8Tensor")));
  }
}

std::string Module(const std::string& parameters, const std::string& buffers,
                   const std::string& modules, const std::string& non_persistent = List({})) {
  return Object(Global("mine", "Net"), Dict({{Text("training"), Bool(true)},
                                             {Text("_parameters"), parameters},
                                             {Text("_buffers"), buffers},
                                             {Text("_non_persistent_buffers_set"),
                                              Call(Global("builtins", "set"), {non_persistent})},
                                             {Text("cache"), T(15)},
                                             {Text("_modules"), modules}}));
}

TEST(Flatten, NamesAWholeModuleAsItsStateDict) {
  const std::string child = Module(Dict({{Text("weight"), T(0)}, {Text("bias"), None()}}),
                                   Dict({}), Dict({}));
  const std::string root = Module(Dict({}), Dict({{Text("steps"), T(1)}, {Text("rope"), T(2)}}),
                                  Dict({{Text("lin"), child}, {Text("none"), None()}}),
                                  List({Text("rope")}));
  const File file = FileOf(root);
  ASSERT_OK_AND_ASSIGN(const Flattened flat, Flatten(file, *file.document.root, ""));
  EXPECT_THAT(TensorsOf(flat, file), ElementsAre(Pair("lin.weight", 0), Pair("steps", 1)));
  EXPECT_THAT(flat.opaque, ElementsAre(Pair("", "mine.Net")));
  for (const NamedTensor& tensor : flat.tensors) {
    EXPECT_EQ(tensor.kind, tensor.name == "steps" ? EntryKind::kBuffer : EntryKind::kParameter);
  }
}

TEST(Flatten, RefusesOtherTensorsOneByOne) {
  const std::string sparse = Call(Global("torch._utils", "_rebuild_sparse_tensor"), {T(3)});
  const File file = FileOf(Dict({{Text("s"), sparse}, {Text("t"), T(0)}}));
  ASSERT_OK_AND_ASSIGN(const Flattened flat, Flatten(file, *file.document.root, ""));
  EXPECT_THAT(TensorsOf(flat, file), ElementsAre(Pair("t", 0)));
  ASSERT_EQ(flat.refused.count("s"), 1u);
  EXPECT_THAT(flat.refused.at("s"), Says("sparse"));
}

TEST(Flatten, NamesTensorsThatAreAttributesOfOthers) {
  const std::string parameter =
      Call(Global("torch._utils", "_rebuild_parameter_with_state"),
           {T(0), Bool(true), OrderedDict(), Dict({{Text("scale"), T(3)}, {Text("note"), Int(1)}})});
  ASSERT_OK_AND_ASSIGN(const Flattened flat, FlattenRoot(Dict({{Text("w"), parameter}})));
  ASSERT_EQ(flat.refused.size(), 1u);
  EXPECT_THAT(flat.refused.at("w.scale"), Says("an attribute of another tensor"));
}

TEST(Flatten, RefusesAFileWithADamagedTensor) {
  const auto flat = FlattenRoot(Dict({{Text("good"), T(0)}, {Text("bad"), T(16)}}));
  EXPECT_THAT(flat, FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(flat, Says("reading tensor \"bad\" of /m.pt"));
}

// ---- Names that several things have.

TEST(Flatten, GivesANameOfTwoTensorsToNeither) {
  const File file = FileOf(Dict({{Text("a.b"), T(0)},
                                 {Text("a"), Dict({{Text("b"), T(1)}, {Text("c"), T(2)}})},
                                 {Text("1"), T(3)},
                                 {Int(1), T(4)}}));
  ASSERT_OK_AND_ASSIGN(const Flattened flat, Flatten(file, *file.document.root, ""));
  EXPECT_THAT(TensorsOf(flat, file), ElementsAre(Pair("a.c", 2)));
  EXPECT_EQ(flat.refused.count("a.b"), 1u);
  EXPECT_EQ(flat.refused.count("1"), 1u);
}

TEST(Flatten, NamesATensorByAnotherNameThatIsItsOwn) {
  const File file = FileOf(Dict({{Text("1"), Put(1, T(0))}, {Int(1), T(1)}, {Text("own"), Get(1)}}));
  ASSERT_OK_AND_ASSIGN(const Flattened flat, Flatten(file, *file.document.root, ""));
  EXPECT_THAT(TensorsOf(flat, file), ElementsAre(Pair("own", 0)));
  EXPECT_THAT(flat.aliases, IsEmpty());
}

TEST(Flatten, TakesOneTensorByTwoKeysOfOneName) {
  const File file = FileOf(Dict({{Text("1"), Put(1, T(0))}, {Int(1), Get(1)}}));
  ASSERT_OK_AND_ASSIGN(const Flattened flat, Flatten(file, *file.document.root, ""));
  EXPECT_THAT(TensorsOf(flat, file), ElementsAre(Pair("1", 0)));
  EXPECT_THAT(flat.refused, IsEmpty());
}

TEST(Flatten, GivesANameOfTwoValuesToNeither) {
  ASSERT_OK_AND_ASSIGN(const Flattened flat,
                       FlattenRoot(Dict({{Text("1"), Int(5)}, {Int(1), Int(6)}, {Text("2"), Int(7)},
                                         {Int(2), T(0)}})));
  EXPECT_THAT(flat.values, IsEmpty());
  EXPECT_THAT(flat.tensors, IsEmpty());
  EXPECT_EQ(flat.refused.size(), 2u);
}

// ---- Limits, on both sides of each.

TEST(Flatten, CutsCycles) {
  // A list that holds a tensor and itself.
  const std::string cycle = Put(1, "]") + pickles::Group({T(0), Get(1)}, "e");
  EXPECT_THAT(TensorsBelow(Dict({{Text("l"), cycle}})), ElementsAre(Pair("l.0", 0)));
}

// Lists that hold the one before twice: 2^depth names for one thing.
std::string Doubled(size_t depth, const std::string& leaf) {
  std::string out = List({leaf});
  for (size_t i = 0; i < depth; ++i) {
    const auto number = static_cast<uint8_t>(i);
    out = "]" + pickles::Group({Put(number, out), Get(number)}, "e");
  }
  return out;
}

TEST(Flatten, EndsWhereNamesDoubleAgainAndAgain) {
  for (const std::string& leaf : {T(0), Int(1), List({})}) {
    EXPECT_THAT(FlattenRoot(Doubled(40, leaf)),
                testing::AllOf(FailsWith(kInvalidArgument, reason::kSourceInvalid),
                               Says("so many names")));
  }
  ASSERT_OK_AND_ASSIGN(const Flattened flat, FlattenRoot(Doubled(10, T(0))));
  EXPECT_EQ(flat.aliases.size(), 1023u);
}

TEST(Flatten, EndsWhereListsNestTooDeep) {
  const auto nested = [](size_t depth) {
    std::string out = T(0);
    for (size_t i = 0; i < depth; ++i) out = "]" + out + "a";
    return out;
  };
  EXPECT_OK(FlattenRoot(nested(kMaxNesting)));
  EXPECT_THAT(FlattenRoot(nested(kMaxNesting + 1)),
              testing::AllOf(FailsWith(kInvalidArgument, reason::kSourceInvalid),
                             Says("nests more than")));
}

TEST(Flatten, EndsWhereANameIsTooLong) {
  EXPECT_OK(FlattenRoot(Dict({{Text(std::string(kMaxNameBytes, 'n')), T(0)}})));
  EXPECT_THAT(FlattenRoot(Dict({{Text(std::string(kMaxNameBytes + 1, 'n')), T(0)}})),
              FailsWith(kInvalidArgument, reason::kSourceInvalid));
}

TEST(Flatten, KeepsNoLongTexts) {
  const std::string root = Dict({{Text("short"), Text(std::string(kMaxValueBytes, 't'))},
                                 {Text("long"), Text(std::string(kMaxValueBytes + 1, 't'))}});
  ASSERT_OK_AND_ASSIGN(const Flattened flat, FlattenRoot(root));
  EXPECT_EQ(flat.values.count("short"), 1u);
  EXPECT_THAT(flat.opaque, ElementsAre(Pair("long", "builtins.str")));
}

TEST(Flatten, CountsWhatAListOfNothingCosts) {
  EXPECT_THAT(FlattenRoot("(" + std::string(900'000, 'N') + "l"),
              FailsWith(kInvalidArgument, reason::kSourceInvalid));
  // 60 kB in each of 10,000 keys.
  std::vector<std::string> values = {Put(1, Text(std::string(60'000, 't')))};
  pickles::Pairs pairs;
  for (int i = 0; i < 10'000; ++i) pairs.emplace_back(Tuple({Get(1), Int(i)}), None());
  EXPECT_THAT(FlattenRoot(List({values[0], Dict(pairs)})),
              FailsWith(kInvalidArgument, reason::kSourceInvalid));
}

TEST(Flatten, CountsWhatOneTextCostsAgainAndAgain) {
  // A text of 60 kB by 10,000 keys is 600 MB.
  std::vector<std::string> items = {Put(1, Text(std::string(60'000, 't')))};
  for (int i = 0; i < 10'000; ++i) items.push_back(Get(1));
  EXPECT_THAT(FlattenRoot(List(items)), FailsWith(kInvalidArgument, reason::kSourceInvalid));
}

}  // namespace
}  // namespace ckptd::torch
