#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/registry.h"
#include "tests/testing/dcp_writer.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/rank_files.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_bytes.h"

namespace ckptd {
namespace {

using pickles::Dict;
using pickles::Int;
using pickles::Text;
using testing::ElementsAre;
using testing::Pair;

// A file of a dict with one tensor of one float.
std::string TorchOf(const std::string& name, const std::string& bytes) {
  RankFile file;
  file.Add(name, file.Tensor({1}, bytes));
  return file.File();
}

class Together : public testing::Test {
 protected:
  absl::StatusOr<OpenedCheckpoint> Read(const std::string& part = "all") {
    Listing listing = ListSource(storage_, "/s").value();
    listing.part = part;
    const CheckpointFormat& format = FormatOf(storage_, listing);
    name_ = format.name();
    auto opened = format.ReadIndex(storage_, listing);
    EXPECT_EQ(format.Check(storage_, listing).ok(), opened.ok());
    if (opened.ok()) {
      EXPECT_THAT(format.StillMeans(storage_, listing, opened->index.files), IsOk());
      EXPECT_TRUE(*format.StillMeans(storage_, listing, opened->index.files));
    }
    return opened;
  }
  // Name -> bytes, kind and group.
  std::map<std::string, std::string> TensorsOf(const OpenedCheckpoint& opened) const {
    std::map<std::string, std::string> out;
    for (const TensorEntry& tensor : opened.index.tensors) {
      const std::vector<std::byte> bytes = TensorBytes(storage_, opened.index, tensor);
      out[tensor.name] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) +
                         " " + std::string(NameOf(tensor.kind)) + " " +
                         opened.index.groups[tensor.group];
    }
    return out;
  }

  MemoryStorage storage_;
  std::string_view name_;
};

TEST_F(Together, IsAllOfAccelerateFolderWithShards) {
  DcpWriter model;
  model.AddTensor("model.w", {"model", "w"}, Dtype::kU8, {4},
                  {{"__0_0.distcp", {0}, {4}, "abcd"}});
  model.Write(storage_, "/s/pytorch_model_fsdp_0");
  DcpWriter optimizer;
  optimizer.AddTensor("optimizer.state.w.step", {"optimizer", "state", "w", "step"}, Dtype::kU8,
                      {1}, {{"__0_0.distcp", {0}, {1}, "7"}});
  optimizer.Write(storage_, "/s/optimizer_0");
  RankFile scheduler;
  scheduler.Add("last_epoch", Int(4));
  storage_.Write("/s/scheduler.bin", scheduler.File());
  storage_.Write("/s/random_states_0.pkl", TorchOf("seed", "1111"));
  storage_.Write("/s/custom_checkpoint_0.pkl", TorchOf("ema", "2222"));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_EQ(name_, "parts");
  EXPECT_THAT(TensorsOf(opened),
              ElementsAre(Pair("custom_checkpoint_0.ema", "2222 buffer extra"),
                          Pair("model.w", "abcd parameter model"),
                          Pair("optimizer.state.w.step", "7 optimizer optimizer"),
                          Pair("random_states_0.seed", "1111 buffer extra")));
  EXPECT_THAT(opened.index.values, ElementsAre(Pair("scheduler.last_epoch", "4")));
  EXPECT_EQ(opened.remarks.back(),
            "put together its parts model (dcp), optimizer (dcp), extra (torch)");
  ASSERT_OK(Read("extra"));
  EXPECT_EQ(name_, "torch");
}

TEST_F(Together, IsAllOfAFolderWithWholeFiles) {
  storage_.Write("/s/pytorch_model.bin", TorchOf("w", "abcd"));
  for (const char* name : {"optimizer", "optimizer_1"}) {
    storage_.Write("/s/" + std::string(name) + ".bin", TorchOf("exp_avg", "1234"));
  }
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(TensorsOf(opened),
              ElementsAre(Pair("model.w", "abcd parameter "),
                          Pair("optimizer.exp_avg", "1234 optimizer optimizer"),
                          Pair("optimizer_1.exp_avg", "1234 optimizer optimizer")));
  for (const char* part : {"extra", "nothing"}) {
    EXPECT_THAT(Read(part), Says("(#model, #optimizer, #all)"));
  }
}

TEST_F(Together, SaysWhichPartIsDamaged) {
  storage_.Write("/s/pytorch_model.bin", TorchOf("w", "abcd"));
  storage_.Write("/s/optimizer.bin", TorchOf("exp_avg", "1234").substr(0, 40));
  const auto read = Read();
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  EXPECT_EQ(FactsOf(read.status())["file"], "/s/optimizer.bin");
}

TEST_F(Together, NeedsTwoParts) {
  storage_.Write("/s/pytorch_model.bin", TorchOf("w", "abcd"));
  const auto read = Read();
  EXPECT_EQ(name_, "torch");
  EXPECT_THAT(read, Says("it has no part \"all\""));
}

}  // namespace
}  // namespace ckptd
