// The output of inspect for a daemon's answer, here that of a fake one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/wire/source_table.h"
#include "tests/unit/client/cli/cli_fixture.h"
#include "tests/unit/client/fake_daemon.h"

namespace ckptd::cli {
namespace {

using fake::FakeDaemon;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class InspectVerb : public ::testing::Test {
 protected:
  Outcome Run(std::vector<std::string> arguments) {
    if (!started_) daemon_.Start();
    started_ = true;
    arguments.insert(arguments.end(), {"--remote", "--address", daemon_.socket()});
    return run_(arguments);
  }

  FakeDaemon daemon_;
  Runner run_;
  bool started_ = false;
};

TEST_F(InspectVerb, AsksTheDaemon) {
  daemon_.answers.inspect.mutable_index()->set_source("/models/tiny");
  daemon_.answers.inspect.set_tensor_count(7);
  const auto output = Parsed<InspectOutput>(
      Run({"inspect", "/models/tiny", "--output", "json"}).out);
  EXPECT_EQ(output.source(), "/models/tiny");
  EXPECT_EQ(output.tensor_count(), 7u);
}

TEST_F(InspectVerb, ListsThePiecesOfATensorThatIsNotInOne) {
  v1::SourceIndex& index = *daemon_.answers.inspect.mutable_index();
  for (const char* path : {"/m/a", "file:///m/%FF"}) {
    v1::SourceFile& file = *index.add_files();
    file.set_path(path);
    file.set_bytes(100);
  }
  CheckpointIndex wanted;
  wanted.groups = {"", "optimizer"};
  SourceTableWriter(wanted, *index.mutable_tensors())
      .Add({"w", Dtype::kU8, EntryKind::kOptimizer, 1, {2, 3},
            {{0, 8, 3, {{0, 0}, {1, 3}}}, {1, 0, 3, {{1, 0}, {1, 3}}, {3, 2}}}});
  const Outcome outcome = Run({"inspect", "/m", "--tensors", "--output", "json"});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  const InspectOutput::Tensor tensor = Parsed<InspectOutput>(outcome.out).tensors(0);
  EXPECT_EQ(tensor.kind(), "optimizer");
  EXPECT_EQ(tensor.group(), "optimizer");
  EXPECT_EQ(tensor.file(), "/m/a");
  EXPECT_EQ(tensor.bytes(), 6u);
  ASSERT_EQ(tensor.pieces_size(), 2);
  EXPECT_THAT(tensor.pieces(0).strides(), ::testing::ElementsAre(3, 1));
  EXPECT_EQ(tensor.pieces(1).file(), "file:///m/%FF");
  EXPECT_THAT(tensor.pieces(1).begin(), ::testing::ElementsAre(1, 0));
  EXPECT_THAT(tensor.pieces(1).strides(), ::testing::ElementsAre(3, 2));
}

// Optimizer state and values of a file of which a view left most.
void FillWithState(v1::InspectCheckpointResponse& answer) {
  v1::SourceIndex& index = *answer.mutable_index();
  index.set_format("torch");
  v1::SourceFile& file = *index.add_files();
  file.set_path("/m/a.bin");
  file.set_bytes(1'000'000);
  CheckpointIndex wanted;
  wanted.groups = {"", "optimizer"};
  SourceTableWriter table(wanted, *index.mutable_tensors());
  table.Add({"w", Dtype::kF32, EntryKind::kParameter, 0, {2}, {{0, 100, 8, {{0}, {2}}}}, true});
  table.Add({"w.exp_avg", Dtype::kF32, EntryKind::kOptimizer, 1, {2}, {{0, 108, 8, {{0}, {2}}}}});
  (*index.mutable_values())["step"] = "7";
  (*index.mutable_opaque())["args"] = "argparse.\x1bNamespace";
  answer.set_value_count(1);
  answer.set_opaque_count(5);
}

TEST_F(InspectVerb, SaysWhatTheTensorsAreAndWhatElseThereIs) {
  FillWithState(daemon_.answers.inspect);
  const Outcome outcome = Run({"inspect", "/m"});
  for (const char* part :
       {"format:   torch", "values:   1", "objects:  5", "parameter                   1   8 B",
        "optimizer  optimizer        1   8 B", "NOT LOADED", "1.0 MB", "step   7",
        "args               argparse.\\x1bNamespace", "and 4 more"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_FALSE(daemon_.last_inspect.values());
}

TEST_F(InspectVerb, ListsValuesOnRequest) {
  FillWithState(daemon_.answers.inspect);
  const auto output = Parsed<InspectOutput>(
      Run({"inspect", "/m", "--values", "--tensors", "--output", "json"}).out);
  EXPECT_TRUE(daemon_.last_inspect.values());
  EXPECT_EQ(output.format(), "torch");
  EXPECT_EQ(output.files(0).unused_bytes(), 999'984u);
  EXPECT_EQ(output.values().at("step"), "7");
  EXPECT_EQ(output.opaque_count(), 5u);
  EXPECT_EQ(output.opaque().size(), 1u);
  EXPECT_TRUE(output.tensors(0).big_endian());
  EXPECT_FALSE(output.tensors(1).big_endian());
  EXPECT_THAT(Run({"inspect", "/m", "--values", "--filter", "st*"}).out,
              AllOf(HasSubstr("step"), Not(HasSubstr("args"))));
}

TEST_F(InspectVerb, SaysWhereOtherValuesAreThanThoseOfThePart) {
  daemon_.answers.inspect.add_remarks("besides there are #extra, #all");
  const Outcome outcome = Run({"inspect", "/m", "--values"});
  EXPECT_THAT(outcome.out, HasSubstr("note: besides there are #extra, #all"));
  EXPECT_THAT(outcome.err, HasSubstr("there is nothing but tensors"));
}

TEST_F(InspectVerb, SaysThatNoNameMatches) {
  FillWithState(daemon_.answers.inspect);
  const auto says = HasSubstr("no name matches zz*");
  EXPECT_THAT(Run({"inspect", "/m", "--filter", "zz*"}).err, says);
  EXPECT_THAT(Run({"inspect", "/m", "--filter", "zz*", "--tree"}).err, says);
  EXPECT_THAT(Run({"inspect", "/m", "--filter", "zz*", "--values"}).err, says);
  EXPECT_EQ(Run({"inspect", "/m", "--filter", "w*"}).err, "");
  EXPECT_EQ(Run({"inspect", "/m", "--filter", "st*", "--values"}).err, "");
}

}  // namespace
}  // namespace ckptd::cli
