// Verbs that need files only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/testing/safetensors_writer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/client/cli/cli_fixture.h"

namespace ckptd::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class OfflineVerbs : public ::testing::Test {
 protected:
  OfflineVerbs() : model_(dir_ / "model.safetensors") { WriteTinyModel(model_); }

  TempFolder dir_;
  std::string model_;
  Runner run_;
};

TEST_F(OfflineVerbs, InspectSumsTheFilesUp) {
  const Outcome outcome = run_({"inspect", model_});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(outcome.out, HasSubstr("tensors:  3 (216 B)"));
  EXPECT_THAT(outcome.out, HasSubstr("BF16         1   48 B"));
}

TEST_F(OfflineVerbs, InspectListsTensorsWithEscapedNames) {
  const Outcome outcome = run_({"inspect", model_, "--tensors"});
  EXPECT_THAT(outcome.out, HasSubstr("model.\\x1b[31m  BF16   [8, 3]"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
}

TEST_F(OfflineVerbs, InspectFiltersByName) {
  const Outcome outcome = run_({"inspect", model_, "--filter", "*.weight"});
  EXPECT_THAT(outcome.out, HasSubstr("model.a.weight"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("step")));
}

TEST_F(OfflineVerbs, InspectGivesExactJson) {
  const auto brief = Parsed<InspectOutput>(run_({"inspect", model_, "--output", "json"}).out);
  EXPECT_EQ(brief.tensor_bytes(), 216u);
  EXPECT_EQ(brief.metadata().at("format"), "pt");
  EXPECT_TRUE(brief.tensors().empty());
  const auto full =
      Parsed<InspectOutput>(run_({"inspect", model_, "--tensors", "--output", "json"}).out);
  ASSERT_EQ(full.tensors_size(), 3);
  EXPECT_EQ(full.tensors(0).name(), "model.\x1b[31m");
  EXPECT_EQ(full.tensors(0).dtype(), "BF16");
  EXPECT_EQ(full.tensors(0).kind(), "parameter");
  EXPECT_EQ(full.tensors(0).file(), model_);
  EXPECT_THAT(full.tensors(0).shape(), ::testing::ElementsAre(8, 3));
  EXPECT_TRUE(full.tensors(0).pieces().empty());
}

TEST_F(OfflineVerbs, InspectShowsTheTreeThatNamesSpell) {
  std::vector<TensorToWrite> tensors = {{"head", Dtype::kF32, {2}}, {"a..b", Dtype::kU8, {1}}};
  for (int i = 0; i < 12; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    tensors.push_back({layer + ".mlp.weight", Dtype::kBF16, {2, i < 11 ? 3u : 4u}});
    tensors.push_back({layer + ".norm.bias", Dtype::kF32, {3}});
  }
  const std::vector<std::byte> zeros(100);
  std::vector<std::span<const std::byte>> data;
  for (const TensorToWrite& tensor : tensors) {
    data.push_back(std::span(zeros).first(ElementCount(tensor.shape) * BitsOf(tensor.dtype) / 8));
  }
  const std::string path = dir_ / "tree.safetensors";
  ASSERT_OK(WriteSafetensors(path, tensors, {}, data));
  EXPECT_EQ(run_({"inspect", path, "--tree"}).out,
            "NAME            TENSORS   SIZE  DTYPE  SHAPE\n"
            "a..b                  1    1 B  U8     [1]\n"
            "head                  1    8 B  F32    [2]\n"
            "model.layers         24  292 B\n"
            "  0 to 10            22  264 B\n"
            "    mlp.weight        1   12 B  BF16   [2, 3]\n"
            "    norm.bias         1   12 B  F32    [3]\n"
            "  11                  2   28 B\n"
            "    mlp.weight        1   16 B  BF16   [2, 4]\n"
            "    norm.bias         1   12 B  F32    [3]\n");
}

TEST_F(OfflineVerbs, InspectTakesNamesOfManyDots) {
  const std::string path = dir_ / "dots.safetensors";
  const std::vector<TensorToWrite> tensors = {{std::string(65'000, '.'), Dtype::kU8, {0}}};
  const std::vector<std::span<const std::byte>> data(1);
  ASSERT_OK(WriteSafetensors(path, tensors, {}, data));
  EXPECT_THAT(run_({"inspect", path, "--tree"}).out, HasSubstr("[0]"));
}

TEST_F(OfflineVerbs, InspectWritesPathsThatAreNotUtf8AsUris) {
  const std::string odd = dir_ / "odd\xff.safetensors";
  WriteTinyModel(odd);
  const Outcome outcome = run_({"inspect", odd, "--output", "json"});
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(Parsed<InspectOutput>(outcome.out).source(), ::testing::EndsWith("odd%FF.safetensors"));
}

TEST_F(OfflineVerbs, InspectSaysWhatIsNotThere) {
  const Outcome outcome = run_({"inspect", dir_ / "none"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("ckptctl: "));
}

TEST_F(OfflineVerbs, PlanPutsModulesOnDevices) {
  const std::vector<std::string> plan = {"plan",         model_,  "--device-map", "sequential",
                                         "--max-memory", "0=1KB", "--no-split",   "model.a"};
  const Outcome outcome = run_(plan);
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("model:          216 B"));
  EXPECT_THAT(outcome.out, HasSubstr("0       1.0 kB   216 B"));
  EXPECT_THAT(outcome.out, HasSubstr("(all)   0       216 B"));
  std::vector<std::string> as_json = plan;
  as_json.insert(as_json.end(), {"--output", "json"});
  const std::string json = run_(as_json).out;
  EXPECT_THAT(json, HasSubstr("\"device_map\": {\n  \"\": 0\n }"));
  const v1::DeviceMap map = Parsed<DeviceMapOutput>(json).plan();
  EXPECT_EQ(map.devices(0).limit_bytes(), 1000u);
  EXPECT_EQ(map.devices(1).device(), "disk");
}

TEST_F(OfflineVerbs, PlanNamesPatternsOfModulesThatDescribeNothing) {
  const std::vector<std::string> plan = {
      "plan", model_, "--device-map", "auto", "--max-memory", "cpu=1KB", "--no-split",
      "model.a", "--no-split", "nothing.*", "--order", "*.a", "--order", "none"};
  const Outcome outcome = run_(plan);
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(outcome.err, HasSubstr("warning: no_split: nothing.* matches no name"));
  EXPECT_THAT(outcome.err, HasSubstr("warning: order: none matches no name"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("model.a")));
  std::vector<std::string> as_json = plan;
  as_json.insert(as_json.end(), {"--output", "json"});
  EXPECT_THAT(Parsed<DeviceMapOutput>(run_(as_json).out).plan().warnings(),
              ::testing::Contains(HasSubstr("nothing.*")));
}

TEST_F(OfflineVerbs, PlanSaysFirstThatItDoesNotKnowTheHardware) {
  const Outcome outcome = run_({"plan", dir_ / "none", "--hardware", "abacus"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("abacus"));
}

TEST_F(OfflineVerbs, PlanCountsWhatRanksReceiveWhereRank0ReadsForAll) {
  const std::vector<std::string> plan = {"plan", model_, "--layout", "fsdp:2", "--hardware",
                                         "h200x8"};
  EXPECT_THAT(run_(plan).out, HasSubstr("RECEIVED"));
  std::vector<std::string> by_all = plan;
  by_all.insert(by_all.end(), {"--reader", "all"});
  EXPECT_THAT(run_(by_all).out, Not(HasSubstr("RECEIVED")));
}

TEST_F(OfflineVerbs, PlanRefusesTiesOfNothing) {
  const Outcome outcome = run_({"plan", model_, "--device-map", "auto", "--max-memory", "cpu=1KB",
                                "--tied", "head.weight=nothing"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("nothing"));
}

TEST_F(OfflineVerbs, PlanSaysWhatEachRankGets) {
  const Outcome outcome = run_({"plan", model_, "--layout", "fsdp:2", "--output", "json"});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  const v1::PlanLoadResponse plan = Parsed<PlanOutput>(outcome.out).plan();
  constexpr uint64_t kShare = 80 + 24 + 8;
  EXPECT_EQ(plan.storage_bytes(), 216u);
  ASSERT_EQ(plan.ranks_size(), 2);
  EXPECT_EQ(plan.ranks(0).tensor_bytes(), kShare);
  EXPECT_EQ(plan.ranks(0).received_bytes(), 0u);
  EXPECT_EQ(plan.ranks(1).received_bytes(), kShare);
  EXPECT_EQ(plan.distinct_bytes(), 2 * kShare);
  EXPECT_EQ(plan.peak_rank_bytes(), plan.ranks(0).slab_bytes());
  EXPECT_EQ(plan.total_slab_bytes(), plan.ranks(0).slab_bytes() + plan.ranks(1).slab_bytes());
  EXPECT_EQ(plan.plan_digest().size(), 16u);
}

TEST_F(OfflineVerbs, PlanPredictsALoadOnKnownHardware) {
  const Outcome text = run_({"plan", model_, "--layout", "fsdp:2", "--hardware", "h200x8"});
  ASSERT_EQ(text.code, kExitFine) << text.err;
  EXPECT_THAT(text.out, HasSubstr("a model, not a measurement"));
  EXPECT_THAT(text.out, HasSubstr("bound by:"));
  const Outcome outcome = run_({"plan", model_, "--layout", "fsdp:16", "--hardware", "h200x8",
                                "--reader", "all", "--output", "json"});
  const PlanOutput plan = Parsed<PlanOutput>(outcome.out);
  EXPECT_GT(plan.prediction().seconds(), 0.0);
  EXPECT_GE(plan.prediction().stages_size(), 4);
  EXPECT_FALSE(
      Parsed<PlanOutput>(run_({"plan", model_, "--layout", "fsdp:2", "--output", "json"}).out)
          .has_prediction());
}

TEST_F(OfflineVerbs, PlanPredictsBothWaysBetweenRanksAndChoosesAsDaemonsDo) {
  const auto predicted = [&](const char* layout, const char* comm, const char* reader = "rank0") {
    const Outcome outcome = run_({"plan", model_, "--layout", layout, "--hardware", "h200x8",
                                  "--comm", comm, "--reader", reader, "--output", "json"});
    const auto prediction = Parsed<PlanOutput>(outcome.out).prediction();
    for (const PlanOutput::Stage& stage : prediction.stages()) {
      if (stage.stage() == "fabric") return prediction.comm() + " over the fabric";
    }
    return prediction.comm();
  };
  EXPECT_EQ(predicted("fsdp:8", "auto"), "host");
  EXPECT_EQ(predicted("fsdp:8", "nccl"), "nccl over the fabric");
  EXPECT_EQ(predicted("fsdp:16", "auto"), "nccl over the fabric");
  EXPECT_EQ(predicted("fsdp:16", "host"), "host");
  EXPECT_EQ(predicted("fsdp:16", "auto", "all"), "nccl over the fabric");
  EXPECT_EQ(predicted("fsdp:16", "auto", "per_node"), "host");
  EXPECT_EQ(predicted("fsdp:16", "nccl", "all"), "nccl over the fabric");
  EXPECT_EQ(
      run_({"plan", model_, "--layout", "fsdp:2", "--hardware", "h200x8", "--comm", "tcp"}).code,
      kExitUsage);
}

TEST_F(OfflineVerbs, PlanPredictsALoadOnHardwareOfAFile) {
  const std::string file = dir_ / "mine.json";
  std::ofstream(file) << R"({"gpus_per_host": 2, "storage": 1e-6, "memory": 10, "link": 20,
                            "description": "slow storage", "fixed_seconds": 0})";
  const Outcome outcome =
      run_({"plan", model_, "--layout", "fsdp:2", "--hardware", file, "--output", "json"});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  const auto prediction = Parsed<PlanOutput>(outcome.out).prediction();
  EXPECT_NEAR(prediction.seconds(), 0.216, 1e-9);
  EXPECT_EQ(prediction.stages(0).stage(), "storage");
}

TEST_F(OfflineVerbs, PlanSaysWhatIsWrongWithHardware) {
  EXPECT_THAT(run_({"plan", model_, "--layout", "fsdp:2", "--hardware", "abacus"}).err,
              HasSubstr("h200x8"));
  const std::string file = dir_ / "bad.json";
  for (const char* const text : {"[]", "{\"link\": -1}", "{\"links\": \"fast\"}", "{\"color\": 1}",
                                 "{\"gpus_per_host\": 0}", "{\"gpus_per_host\": 1.5}", "{"}) {
    std::ofstream(file) << text;
    const Outcome outcome = run_({"plan", model_, "--layout", "fsdp:2", "--hardware", file});
    EXPECT_EQ(outcome.code, kExitFailed) << text;
    EXPECT_THAT(outcome.err, HasSubstr("reading the hardware of")) << text;
  }
  std::ofstream(file) << R"({"link": 0.0000000000000000000000001})";
  EXPECT_THAT(run_({"plan", model_, "--layout", "fsdp:2", "--hardware", file}).err,
              HasSubstr("a number of more than 24 characters, near byte 9"));
}

TEST_F(OfflineVerbs, PlanWarnsOfWhatRounds) {
  const Outcome outcome = run_({"plan", model_, "--layout", "fsdp:2", "--dtype", "bf16"});
  EXPECT_THAT(outcome.out, HasSubstr("plan digest:"));
  EXPECT_THAT(outcome.err, HasSubstr("smaller dtype"));
}

TEST_F(OfflineVerbs, PlanCastsNothingThatIsKept) {
  const Outcome outcome = run_({"plan", "--layout", "fsdp:2", "--dtype", "BF16", "--keep-fp32",
                                "*.weight", "--keep-fp32", "x", model_});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(outcome.err, Not(HasSubstr("smaller dtype")));
}

TEST_F(OfflineVerbs, PlanReadsALayoutFromAFileEitherWay) {
  const std::string expected =
      run_({"plan", model_, "--layout", "replicate:2", "--output", "json"}).out;
  WriteFile(dir_ / "spelling.txt", "replicate:2");
  EXPECT_EQ(
      run_({"plan", model_, "--layout", "@" + (dir_ / "spelling.txt"), "--output", "json"}).out,
      expected);
  EXPECT_EQ(run_({"plan", model_, "--layout", dir_ / "spelling.txt", "--output", "json"}).out,
            expected);
}

TEST_F(OfflineVerbs, PlanSaysThatALayoutFileIsMissing) {
  const Outcome outcome = run_({"plan", model_, "--layout", dir_ / "none.json"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("none.json"));
}

TEST_F(OfflineVerbs, FilesFarAboveTheirLimitAreRefusedUnread) {
  const std::string large = dir_ / "large.json";
  WriteFile(large, "{");
  std::filesystem::resize_file(large, uint64_t{4} << 40);
  const Outcome layout = run_({"plan", model_, "--layout", large});
  EXPECT_EQ(layout.code, kExitFailed);
  EXPECT_THAT(layout.err, HasSubstr("more than the 4194304 allowed here"));
  const Outcome manifest = run_({"verify", model_, "--manifest", large});
  EXPECT_EQ(manifest.code, kExitFailed);
  EXPECT_THAT(manifest.err, HasSubstr("more than the 500000000 allowed here"));
}

TEST_F(OfflineVerbs, PlanTellsAWrongLayout) {
  const Outcome outcome = run_({"plan", model_, "--layout", "fsdp:x", "--output", "json"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_EQ(ReasonIn(outcome.err), "LAYOUT_INVALID");
}

TEST_F(OfflineVerbs, VerifyAcceptsGoodFiles) {
  const Outcome outcome = run_({"verify", model_});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(outcome.out, HasSubstr("3 tensors, 216 B"));
}

TEST_F(OfflineVerbs, VerifyFindsACutFile) {
  std::filesystem::resize_file(model_, std::filesystem::file_size(model_) - 1);
  const Outcome outcome = run_({"verify", model_});
  EXPECT_EQ(outcome.code, kExitMismatch);
  EXPECT_THAT(outcome.err, HasSubstr("model.safetensors"));
}

TEST_F(OfflineVerbs, VerifyDoesNotCallAMissingFileDamaged) {
  EXPECT_EQ(run_({"verify", dir_ / "none.safetensors"}).code, kExitFailed);
}

TEST_F(OfflineVerbs, VerifyKeepsAManifestAndFindsAFlippedBitBesideIt) {
  const std::string manifest = dir_ / "m.json";
  ASSERT_EQ(run_({"verify", model_, "--write-manifest", manifest}).code, kExitFine);
  EXPECT_EQ(run_({"verify", model_, "--manifest", manifest}).code, kExitFine);
  std::fstream file(model_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x7f');
  file.close();
  const Outcome outcome = run_({"verify", model_, "--manifest", manifest});
  EXPECT_EQ(outcome.code, kExitMismatch);
  EXPECT_THAT(outcome.out, HasSubstr(" in model.safetensors: its bytes differ\n"));
  EXPECT_THAT(outcome.err, HasSubstr("it differs from its manifest"));
}

TEST_F(OfflineVerbs, VerifyListsWhatDiffersAsJson) {
  const std::string manifest = dir_ / "m.json";
  ASSERT_EQ(run_({"verify", model_, "--write-manifest", manifest}).code, kExitFine);
  WriteSafetensors(model_, R"({"step":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8);
  const Outcome outcome = run_({"verify", model_, "--manifest", manifest, "--output", "json"});
  EXPECT_EQ(outcome.code, kExitMismatch);
  const auto output = Parsed<VerifyOutput>(outcome.out);
  EXPECT_FALSE(output.ok());
  EXPECT_EQ(output.rank(), -1);
  EXPECT_EQ(output.tensor_count(), 1u);
  EXPECT_EQ(output.mismatched_size(), output.differences_size());
}

TEST_F(OfflineVerbs, VerifyDoesNotCallWhatItOnlyReadRight) {
  const std::string manifest = dir_ / "m.json";
  EXPECT_EQ(run_({"verify", model_, "--write-manifest", manifest}).out,
            model_ + ": 3 tensors, 216 B: digests of all bytes, written to " + manifest + "\n");
}

TEST_F(OfflineVerbs, VerifyLeavesNoManifestThatItCouldNotWrite) {
  const Outcome outcome = run_({"verify", model_, "--write-manifest", dir_ / "none/m.json"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("none/m.json"));
}

TEST_F(OfflineVerbs, VerifyNamesAManifestThatIsNone) {
  const Outcome outcome = run_({"verify", model_, "--manifest", model_});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("reading a manifest"));
}

TEST_F(OfflineVerbs, VerifyOfALoadedCheckpointTakesNoManifest) {
  EXPECT_EQ(run_({"verify", "checkpoints/ab12", "--manifest", "m.json"}).code, kExitUsage);
}

TEST_F(OfflineVerbs, VerifyTakesTheNameOfAFileThatIsNotThereForOne) {
  for (const char* name : {"none.bin", "none#optimizer"}) {
    const Outcome outcome = run_({"verify", name});
    EXPECT_EQ(outcome.code, kExitFailed) << name;
    EXPECT_THAT(outcome.err, HasSubstr("No such file")) << name;
  }
}

TEST_F(OfflineVerbs, WhatIsNotThereIsNamedWithWhatToDo) {
  const std::string to = dir_ / "none/x";
  const std::string no_folder = "there is no folder " + (dir_ / "none") + "; create it first";
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"convert", model_, to},
           {"merge", model_, to},
           {"verify", model_, "--write-manifest", to},
           {"plan", model_, "--layout", "fsdp:2", "--html", to}}) {
    const Outcome outcome = run_(arguments);
    EXPECT_EQ(outcome.code, kExitFailed) << arguments[0];
    EXPECT_THAT(outcome.err, HasSubstr(no_folder)) << arguments[0];
  }
  EXPECT_THAT(run_({"verify", model_, "--manifest", to}).err,
              HasSubstr("x: there is no such file; name a manifest"));
}

TEST_F(OfflineVerbs, PlanAndDiffSayWhatOfAFolderIsTaken) {
  WriteTinyModel(dir_ / "other.safetensors");
  const std::string folder = dir_ / "";
  const auto noted = HasSubstr("ckptctl: note: left out \"other.safetensors\"");
  EXPECT_THAT(run_({"plan", folder, "--layout", "fsdp:2"}).err, noted);
  EXPECT_THAT(
      run_({"plan", folder, "--device-map", "auto", "--max-memory", "cpu=1KB"}).err, noted);
  EXPECT_THAT(run_({"diff", model_, folder}).err, noted);
  EXPECT_EQ(run_({"diff", model_, folder, "--quiet"}).err, "");
}

TEST_F(OfflineVerbs, DiffRefusesPatternsThatLeaveNothing) {
  const Outcome none = run_({"diff", model_, model_, "--include", "*", "--include", "zz*"});
  EXPECT_EQ(none.code, kExitFailed);
  EXPECT_THAT(none.err, HasSubstr("no name matches \"zz*\""));
  EXPECT_EQ(run_({"diff", model_, model_, "--exclude", "*"}).code, kExitFailed);
  EXPECT_EQ(run_({"diff", model_, model_, "--include", "step"}).code, kExitFine);
}

TEST_F(OfflineVerbs, ConvertSaysHowFarItIsOnceItTakesAWhile) {
  EXPECT_EQ(run_({"convert", model_, dir_ / "short"}).err, "");
  std::ostringstream out;
  std::ostringstream err;
  Io io{out, err};
  int seconds = 0;
  io.now = [&seconds] { return TimePoint(std::chrono::seconds(seconds++)); };
  EXPECT_EQ(RunCli({"convert", model_, dir_ / "long"}, io), kExitFine);
  EXPECT_THAT(err.str(),
              ::testing::ContainsRegex("WRITING .*\nWRITTEN  100%  216 B of 216 B\n$"));
}

TEST_F(OfflineVerbs, VerifyCannotAttachToFiles) {
  EXPECT_EQ(run_({"verify", model_, "--attached"}).code, kExitUsage);
}

TEST_F(OfflineVerbs, CompletionKnowsEveryVerbAndOption) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome outcome = run_({"completion", shell});
    EXPECT_EQ(outcome.code, kExitFine);
    for (const char* word : {"inspect", "log-level", "keep-fp32", "no-wait", "timeout"}) {
      EXPECT_THAT(outcome.out, HasSubstr(word)) << shell;
    }
  }
}

TEST_F(OfflineVerbs, VersionIsPrintedBothWays) {
  EXPECT_EQ(run_({"version"}).out, "ckptctl " CKPTD_VERSION "\n");
  EXPECT_EQ(run_({"--version"}).out, "ckptctl " CKPTD_VERSION "\n");
}

}  // namespace
}  // namespace ckptd::cli
