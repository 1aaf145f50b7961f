#include "common/source/formats/torch/choose.h"

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace ckptd::torch {
namespace {

using Names = std::vector<std::string>;

constexpr char kFirst[] = "pytorch_model-00001-of-00002.bin";
constexpr char kSecond[] = "pytorch_model-00002-of-00002.bin";

struct Folder {
  Names names;
  Names chosen;      // the index alone, or the files; empty: none
  std::string says;  // of the error
  std::string part = "";
};
void PrintTo(const Folder& folder, std::ostream* out) { *out << testing::PrintToString(folder.names); }

Listing ListingOf(const Folder& folder) {
  Listing listing;
  listing.source = "/f";
  listing.is_folder = true;
  listing.names = folder.names;
  std::sort(listing.names.begin(), listing.names.end());
  listing.part = folder.part;
  return listing;
}

class ChosenFiles : public testing::TestWithParam<Folder> {};
TEST_P(ChosenFiles, AreThoseOfTheRule) {
  const auto choice = ChooseFiles(ListingOf(GetParam()));
  if (GetParam().chosen.empty()) {
    ASSERT_FALSE(choice.ok());
    EXPECT_THAT(choice, Says(GetParam().says));
    EXPECT_EQ(FactsOf(choice.status()).count("file"), 1u);
    return;
  }
  ASSERT_OK(choice);
  EXPECT_EQ(choice->index.empty() ? choice->names : Names{choice->index}, GetParam().chosen);
}
INSTANTIATE_TEST_SUITE_P(
    Folders, ChosenFiles,
    testing::Values(
        Folder{{"pytorch_model.bin", "pytorch_model.bin.index.json", "a.pt"}, {"pytorch_model.bin"}},
        Folder{{"pytorch_model.bin.index.json", "x.bin.index.json", kFirst},
               {"pytorch_model.bin.index.json"}},
        Folder{{"x.bin.index.json", "a.pt"}, {"x.bin.index.json"}},
        Folder{{"x.bin.index.json", "y.bin.index.json"}, {}, "name the one to load"},
        Folder{{kFirst, kSecond, "a.pt"}, {kFirst, kSecond}},
        Folder{{kFirst}, {}, kSecond},
        Folder{{"best.ckpt", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_3.pth",
                "scaler.pt", "optimizer_1.bin", "random_states_0.pkl", "x.pkl", ".hidden.pt"},
               {"best.ckpt"}},
        Folder{{"pytorch_model_fsdp.bin", "optimizer.bin"}, {"pytorch_model_fsdp.bin"}},
        Folder{{"adapter_model.bin", "training_args.bin"}, {"adapter_model.bin"}},
        Folder{{"adapter_model.bin", "model.pth.tar"}, {"model.pth.tar"}},
        Folder{{"a.pt", "b.pth"}, {}, "name the one to load"},
        Folder{{"consolidated.00.pth", "consolidated.01.pth"}, {}, "name the one to load"},
        Folder{{"training_args.bin"}, {}, "no file of torch for the model"},
        Folder{{"a.pt", "optimizer.bin", "optimizer_1.bin"}, {"optimizer.bin", "optimizer_1.bin"}, "",
               "optimizer"},
        Folder{{"a.pt"}, {}, "no file of torch for #optimizer", "optimizer"},
        Folder{{"a.pt", "scheduler.bin", "random_states_0.pkl", "training_args.bin"},
               {"random_states_0.pkl", "scheduler.bin", "training_args.bin"}, "", "extra"},
        Folder{{"a.pt"}, {}, "#model, #optimizer, #extra", "all"}));

TEST(ChooseFiles, SaysWhichWeightsDoNotCount) {
  const auto choice =
      ChooseFiles(ListingOf({{"pytorch_model.bin", kFirst, "optimizer.bin", "x.bin.index.json"}, {}, ""}));
  ASSERT_OK(choice);
  EXPECT_EQ(choice->left_out, (Names{"x.bin.index.json", kFirst}));
}

struct Recognised {
  Names names;
  bool is_of_torch;
  std::string part = "";
};
void PrintTo(const Recognised& folder, std::ostream* out) {
  *out << testing::PrintToString(folder.names);
}
class FolderOfTorch : public testing::TestWithParam<Recognised> {};
TEST_P(FolderOfTorch, IsKnownByItsNames) {
  const auto& [names, is_of_torch, part] = GetParam();
  EXPECT_EQ(HasTorchFiles(ListingOf({names, {}, "", part})), is_of_torch);
}
INSTANTIATE_TEST_SUITE_P(
    Folders, FolderOfTorch,
    testing::Values(Recognised{{"pytorch_model.bin"}, true},
                    Recognised{{"pytorch_model.bin", "model.safetensors"}, false},
                    Recognised{{"pytorch_model.bin", "model.safetensors.index.json"}, false},
                    Recognised{{"pytorch_model.bin", "a.safetensors"}, true},
                    Recognised{{"a.pt", "a.safetensors"}, false},
                    Recognised{{"training_args.bin", "config.json"}, false},
                    Recognised{{"a.txt", "a.pkl"}, false},
                    Recognised{{"optimizer.bin", "model.safetensors"}, true, "optimizer"},
                    Recognised{{"scheduler.bin", "model.safetensors"}, false, "optimizer"},
                    Recognised{{"random_states_0.pkl"}, true, "extra"}));

TEST(StemOf, IsTheNameWithoutItsExtension) {
  EXPECT_EQ(StemOf("optimizer_1.bin"), "optimizer_1");
  EXPECT_EQ(StemOf("a.b.pth.tar"), "a.b");
  EXPECT_EQ(StemOf("random_states_0.pkl"), "random_states_0");
}

}  // namespace
}  // namespace ckptd::torch
