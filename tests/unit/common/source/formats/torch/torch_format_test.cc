// Files and folders of torch as sources: parts, prefixes, indices.
#include "common/source/formats/torch/format.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/torch_writer.h"

namespace ckptd {
namespace {

using pickles::Call;
using pickles::Dict;
using pickles::Float;
using pickles::Global;
using pickles::Int;
using pickles::List;
using pickles::Object;
using pickles::Text;
using pickles::TensorV2;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

// One float of a storage of four.
std::string T(uint64_t n) { return TensorV2(pickles::Storage("Float", "0", 4), n, {1}, {1}); }
std::string ZipWith(const std::string& root) { return TorchZip(root, {{"0", "aaaabbbbccccdddd"}}); }

std::string OptimizerState() {
  return Dict({{Text("state"), Dict({{Int(0), Dict({{Text("exp_avg"), T(2)}})}})},
               {Text("param_groups"), List({Dict({{Text("lr"), Float("0.1")}})})}});
}
// As Lightning writes it.
std::string TrainingState() {
  return Dict({{Text("epoch"), Int(3)},
               {Text("state_dict"), Dict({{Text("net.w"), T(0)}, {Text("net.b"), T(1)}})},
               {Text("optimizer_states"), List({OptimizerState()})},
               {Text("callbacks"), Dict({{Text("best"), T(3)}})}});
}

class TorchSource : public testing::Test {
 protected:
  absl::StatusOr<OpenedCheckpoint> Read(const std::string& source, const std::string& part = "") {
    Listing listing = ListSource(storage_, source).value();
    listing.part = part;
    recognised_ = format_.Recognise(storage_, listing);
    return format_.ReadIndex(storage_, listing);
  }
  // Name -> kind and group.
  static std::map<std::string, std::string> TensorsOf(const OpenedCheckpoint& opened) {
    std::map<std::string, std::string> out;
    for (const TensorEntry& tensor : opened.index.tensors) {
      out[tensor.name] =
          std::string(NameOf(tensor.kind)) + " " + opened.index.groups[tensor.group];
    }
    return out;
  }
  bool Has(const OpenedCheckpoint& opened, std::string_view text) {
    return std::any_of(opened.remarks.begin(), opened.remarks.end(), [&](const auto& remark) {
      return remark.find(text) != std::string::npos;
    });
  }

  MemoryStorage storage_;
  TorchFormat format_;
  bool recognised_ = false;
};

// ---- Parts of a file.

TEST_F(TorchSource, NamesAllPartsThatThereAre) {
  storage_.Write("/last.ckpt", ZipWith(TrainingState()));
  EXPECT_THAT(Read("/last.ckpt", "ema"), Says("(#model, #optimizer, #extra, #all)"));
  EXPECT_TRUE(Has(Read("/last.ckpt").value(), "\"callbacks\": #optimizer, #extra, #all"));
  storage_.Write("/two.pt", ZipWith(Dict({{Text("model"), Dict({{Text("w"), T(0)}})},
                                          {Text("optimizer"), OptimizerState()}})));
  EXPECT_THAT(Read("/two.pt", "ema"), Says("(#model, #optimizer, #all)"));
  EXPECT_TRUE(Has(Read("/two.pt").value(), "besides there is \"optimizer\": #optimizer, #all"));
  storage_.Write("/m.bin", ZipWith(Dict({{Text("w"), T(0)}})));
  EXPECT_THAT(Read("/m.bin", "optimizer"), Says("(#model, #all)"));
}

TEST_F(TorchSource, IsAPlainStateDict) {
  storage_.Write("/m.bin", ZipWith(Dict({{Text("w"), T(0)}, {Text("b"), T(1)}})));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/m.bin"));
  EXPECT_TRUE(recognised_);
  EXPECT_EQ(opened.index.format, "torch");
  EXPECT_THAT(TensorsOf(opened), ElementsAre(Pair("b", "parameter "), Pair("w", "parameter ")));
  EXPECT_THAT(opened.remarks, IsEmpty());
}

TEST_F(TorchSource, OfATrainerGivesItsModel) {
  storage_.Write("/l.ckpt", ZipWith(TrainingState()));
  for (const char* part : {"", "model"}) {
    ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/l.ckpt", part));
    EXPECT_THAT(TensorsOf(opened),
                ElementsAre(Pair("net.b", "parameter "), Pair("net.w", "parameter ")));
    EXPECT_TRUE(Has(opened, "took what lies below \"state_dict\" of /l.ckpt"));
    EXPECT_TRUE(Has(opened, "#optimizer, #extra, #all"));
  }
}

TEST_F(TorchSource, OfATrainerGivesOtherPartsByTheirNames) {
  storage_.Write("/l.ckpt", ZipWith(TrainingState()));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint optimizer, Read("/l.ckpt", "optimizer"));
  EXPECT_THAT(TensorsOf(optimizer),
              ElementsAre(Pair("0.state.0.exp_avg", "optimizer optimizer")));
  EXPECT_THAT(optimizer.index.values, ElementsAre(Pair("0.param_groups.0.lr", "0.1")));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint extra, Read("/l.ckpt", "extra"));
  EXPECT_THAT(TensorsOf(extra), ElementsAre(Pair("callbacks.best", "buffer extra")));
  EXPECT_THAT(extra.index.values, ElementsAre(Pair("epoch", "3")));
}

TEST_F(TorchSource, OfATrainerGivesAllByFullNames) {
  storage_.Write("/l.ckpt", ZipWith(TrainingState()));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/l.ckpt", "all"));
  EXPECT_THAT(TensorsOf(opened),
              ElementsAre(Pair("callbacks.best", "parameter extra"),
                          Pair("optimizer_states.0.state.0.exp_avg", "optimizer optimizer"),
                          Pair("state_dict.net.b", "parameter "),
                          Pair("state_dict.net.w", "parameter ")));
  EXPECT_THAT(opened.index.values, Contains(Pair("epoch", "3")));
}

TEST_F(TorchSource, LacksPartsThatItDoesNotHave) {
  storage_.Write("/m.bin", ZipWith(Dict({{Text("w"), T(0)}})));
  storage_.Write("/l.ckpt", ZipWith(TrainingState()));
  storage_.Write("/o.bin", ZipWith(OptimizerState()));
  for (const auto& [source, part] :
       {std::pair("/m.bin", "optimizer"), std::pair("/m.bin", "extra"),
        std::pair("/l.ckpt", "ema"), std::pair("/o.bin", "model")}) {
    const auto read = Read(source, part);
    EXPECT_THAT(read, FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
    EXPECT_THAT(read, Says("#all"));
  }
}

TEST_F(TorchSource, OfAnOptimizerIsAllOptimizer) {
  storage_.Write("/o.bin", ZipWith(OptimizerState()));
  for (const char* part : {"", "optimizer", "all"}) {
    ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/o.bin", part));
    EXPECT_THAT(TensorsOf(opened), ElementsAre(Pair("state.0.exp_avg", "optimizer optimizer")));
    EXPECT_THAT(opened.index.values, ElementsAre(Pair("param_groups.0.lr", "0.1")));
  }
}

TEST_F(TorchSource, TakesNoDescriptionForTheModel) {
  storage_.Write("/m.pt", ZipWith(Dict({{Text("model"), Dict({{Text("layers"), Int(2)}})},
                                        {Text("w"), T(0)}})));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/m.pt"));
  EXPECT_THAT(TensorsOf(opened), ElementsAre(Pair("w", "parameter ")));
  EXPECT_THAT(opened.index.values, ElementsAre(Pair("model.layers", "2")));
}

TEST_F(TorchSource, OfOneTensorIsNamed) {
  storage_.Write("/t.pt", ZipWith(T(1)));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/t.pt"));
  EXPECT_THAT(TensorsOf(opened), ElementsAre(Pair("tensor", "parameter ")));
}

TEST_F(TorchSource, LeavesWrappersOffTheNamesOfAFile) {
  storage_.Write("/ddp.pt", ZipWith(Dict({{Text("module._orig_mod.w"), T(0)},
                                          {Text("module._orig_mod.b"), T(0)}})));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/ddp.pt"));
  EXPECT_THAT(TensorsOf(opened), ElementsAre(Pair("w", "parameter ")));
  EXPECT_THAT(opened.index.aliases, ElementsAre(Pair("b", "w")));
  EXPECT_TRUE(Has(opened, "left the prefix \"module._orig_mod.\" off all 2 names"));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint all, Read("/ddp.pt", "all"));
  EXPECT_THAT(TensorsOf(all), ElementsAre(Pair("module._orig_mod.w", "parameter ")));
  storage_.Write("/some.pt", ZipWith(Dict({{Text("module.w"), T(0)}, {Text("head"), T(1)}})));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint some, Read("/some.pt"));
  EXPECT_THAT(TensorsOf(some), ElementsAre(Pair("head", "parameter "),
                                           Pair("module.w", "parameter ")));
}

TEST_F(TorchSource, SaysWhichTensorsAreLeftOut) {
  const std::string sparse = Call(Global("torch._utils", "_rebuild_sparse_tensor"), {});
  storage_.Write("/m.pt", ZipWith(Dict({{Text("s"), sparse}, {Text("w"), T(0)}})));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/m.pt"));
  EXPECT_TRUE(Has(opened, "left out \"s\" of /m.pt: it is a sparse tensor"));
  EXPECT_THAT(opened.index.opaque, ElementsAre(Pair("s", "torch.Tensor")));
  storage_.Write("/s.pt", ZipWith(Dict({{Text("s"), sparse}})));
  EXPECT_THAT(Read("/s.pt"), FailsWith(absl::StatusCode::kUnimplemented,
                                       reason::kSourceUnsupported));
}

TEST_F(TorchSource, RefusesCompressedStorages) {
  std::vector<ZipRecord> records = {
      {.name = "m/data.pkl", .bytes = pickles::Pickle(Dict({{Text("w"), T(0)}}))},
      DeflatedRecord("m/data/0", "aaaabbbbccccdddd")};
  storage_.Write("/m.pt", WriteZip(records).bytes);
  EXPECT_THAT(Read("/m.pt"), testing::AllOf(FailsWith(absl::StatusCode::kUnimplemented,
                                                      reason::kSourceUnsupported),
                                            Says("compressed")));
}

TEST_F(TorchSource, RefusesAnObjectWithoutTensors) {
  storage_.Write("/training_args.bin",
                 ZipWith(Object(Global("transformers.training_args", "TrainingArguments"),
                                Dict({{Text("lr"), Float("0.1")}}))));
  EXPECT_THAT(Read("/training_args.bin"),
              testing::AllOf(FailsWith(absl::StatusCode::kUnimplemented,
                                       reason::kSourceUnsupported),
                             Says("transformers.training_args.TrainingArguments")));
}

TEST_F(TorchSource, SaysWhichNumbersAreTurnedRound) {
  storage_.Write("/m.pt", TorchZip(Dict({{Text("f"), T(0)},
                                         {Text("u"), TensorV2(pickles::Storage("Byte", "1", 1), 0,
                                                              {1}, {1})}}),
                                   {{"0", "aaaabbbbccccdddd"}, {"1", "x"}}, "big"));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/m.pt"));
  EXPECT_TRUE(opened.index.Find("f")->big_endian);
  EXPECT_FALSE(opened.index.Find("u")->big_endian);
}

TEST_F(TorchSource, SaysWhoseSignsAreOthers) {
  const auto with = [](const char* key) {
    return TensorV2(pickles::Storage("ComplexFloat", "0", 2), 0, {2}, {1},
                    {Dict({{Text(key), pickles::Bool(true)}})});
  };
  storage_.Write("/m.pt", ZipWith(Dict({{Text("c"), with("conj")}, {Text("n"), with("neg")}})));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/m.pt"));
  const TensorEntry& conjugated = *opened.index.Find("c");
  EXPECT_FALSE(conjugated.negates_real);
  EXPECT_TRUE(conjugated.negates_imaginary);
  const TensorEntry& negated = *opened.index.Find("n");
  EXPECT_TRUE(negated.negates_real);
  EXPECT_TRUE(negated.negates_imaginary);
}

// ---- Folders.

TEST_F(TorchSource, OfAFolderHasWhatATrainerKeepsBesidesAsAPart) {
  storage_.Write("/f/pytorch_model.bin", ZipWith(Dict({{Text("w"), T(0)}})));
  storage_.Write("/f/scheduler.bin", ZipWith(Dict({{Text("last_epoch"), Int(4)}})));
  storage_.Write("/f/random_states_0.pkl", ZipWith(Dict({{Text("torch_manual_seed"), T(1)}})));
  storage_.Write("/f/custom_checkpoint_0.pkl", ZipWith(Dict({{Text("ema"), T(2)}})));
  storage_.Write("/f/training_args.bin",
                 ZipWith(Object(Global("transformers.training_args", "TrainingArguments"),
                                Dict({{Text("lr"), Float("0.1")}}))));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/f", "extra"));
  EXPECT_TRUE(recognised_);
  EXPECT_THAT(TensorsOf(opened),
              ElementsAre(Pair("custom_checkpoint_0.ema", "buffer extra"),
                          Pair("random_states_0.torch_manual_seed", "buffer extra")));
  EXPECT_THAT(opened.index.values, ElementsAre(Pair("scheduler.last_epoch", "4")));
  EXPECT_THAT(opened.index.opaque,
              ElementsAre(Pair("training_args", "transformers.training_args.TrainingArguments")));
}

TEST_F(TorchSource, OfAnIndexKeepsNamesAndMetadata) {
  storage_.Write("/f/a.bin", ZipWith(Dict({{Text("module.w"), T(0)}, {Text("module.x"), T(2)}})));
  storage_.Write("/f/b.bin", ZipWith(Dict({{Text("module.w"), T(1)}, {Text("module.y"), T(3)}})));
  storage_.Write("/f/pytorch_model.bin.index.json",
                 R"({"metadata": {"format": "pt", "total_size": 16}, "weight_map": {)"
                 R"("module.w": "b.bin", "module.x": "b.bin", "module.z": "a.bin"}})");
  for (const char* source : {"/f", "/f/pytorch_model.bin.index.json"}) {
    ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read(source));
    EXPECT_TRUE(recognised_);
    EXPECT_THAT(TensorsOf(opened), ElementsAre(Pair("module.w", "parameter "),
                                               Pair("module.x", "parameter "),
                                               Pair("module.y", "parameter ")));
    EXPECT_EQ(opened.index.Find("module.w")->pieces.front().file, 1u) << "the last file counts";
    EXPECT_THAT(opened.index.metadata, ElementsAre(Pair("format", "pt")));
    EXPECT_EQ(opened.index.files.back().path, "/f/pytorch_model.bin.index.json");
    EXPECT_TRUE(Has(opened, "are in no file that it names: \"module.z\""));
    EXPECT_TRUE(Has(opened, "are in another file than it says: \"module.x\""));
  }
}

TEST_F(TorchSource, OfAnIndexNamesAllFilesThatAreMissing) {
  storage_.Write("/f/a.bin", ZipWith(Dict({{Text("w"), T(0)}})));
  storage_.Write("/f/pytorch_model.bin.index.json",
                 R"({"weight_map": {"w": "a.bin", "x": "b.bin", "y": "c.bin"}})");
  const auto read = Read("/f");
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(read, Says("\"b.bin\", \"c.bin\""));
}

TEST_F(TorchSource, OfAnIndexThatLeadsOutIsRefused) {
  storage_.Write("/f/pytorch_model.bin.index.json", R"({"weight_map": {"w": "../a.bin"}})");
  EXPECT_THAT(Read("/f"), FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
}

TEST_F(TorchSource, KeepsATensorWhoseFirstNameALaterFileTakes) {
  storage_.Write("/f/a.bin", ZipWith(Dict({{Text("w"), pickles::Put(1, T(0))},
                                           {Text("tied"), pickles::Get(1)},
                                           {Text("too"), pickles::Get(1)}})));
  storage_.Write("/f/b.bin", ZipWith(Dict({{Text("w"), T(1)}, {Text("too"), T(2)}})));
  storage_.Write("/f/pytorch_model.bin.index.json",
                 R"({"weight_map": {"w": "b.bin", "tied": "a.bin", "too": "b.bin"}})");
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/f"));
  EXPECT_EQ(opened.index.Find("tied")->pieces.front().file, 0u);
  EXPECT_EQ(opened.index.Find("w")->pieces.front().file, 1u);
  EXPECT_EQ(opened.index.Find("too")->pieces.front().file, 1u);
  EXPECT_THAT(opened.index.aliases, IsEmpty());
}

TEST_F(TorchSource, OfASeriesRefusesANameInTwoFiles) {
  storage_.Write("/f/m-00001-of-00002.bin", ZipWith(Dict({{Text("w"), T(0)}})));
  storage_.Write("/f/m-00002-of-00002.bin", ZipWith(Dict({{Text("w"), T(1)}})));
  EXPECT_THAT(Read("/f"), FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
}

TEST_F(TorchSource, OfATrainersFolderHasParts) {
  storage_.Write("/c/model.safetensors", "not looked at");
  storage_.Write("/c/optimizer.pt", ZipWith(OptimizerState()));
  storage_.Write("/c/scheduler.pt", ZipWith(Dict({{Text("last_epoch"), Int(4)}})));
  storage_.Write("/c/rng_state_0.pth", ZipWith(Dict({{Text("cpu"), T(0)}})));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint optimizer, Read("/c", "optimizer"));
  EXPECT_TRUE(recognised_);
  EXPECT_THAT(TensorsOf(optimizer), ElementsAre(Pair("state.0.exp_avg", "optimizer optimizer")));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint extra, Read("/c", "extra"));
  EXPECT_THAT(TensorsOf(extra), ElementsAre(Pair("rng_state_0.cpu", "buffer extra")));
  EXPECT_THAT(extra.index.values, ElementsAre(Pair("scheduler.last_epoch", "4")));
  Read("/c").IgnoreError();
  EXPECT_FALSE(recognised_) << "its model is safetensors";
  storage_.Write("/c/optimizer_1.pt", ZipWith(OptimizerState()));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint two, Read("/c", "optimizer"));
  EXPECT_THAT(TensorsOf(two), ElementsAre(Pair("optimizer.state.0.exp_avg", "optimizer optimizer"),
                                          Pair("optimizer_1.state.0.exp_avg",
                                               "optimizer optimizer")));
}

}  // namespace
}  // namespace ckptd
