#include "common/devices/module_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/fake_source.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> NamesOf(const absl::StatusOr<ModuleTree>& tree) {
  EXPECT_THAT(tree, IsOk());
  std::vector<std::string> names;
  if (!tree.ok()) return names;
  for (const ModuleNode& node : tree->nodes) names.push_back(node.name);
  return names;
}

uint64_t BitsOfAll(const CheckpointIndex& index, const DtypePolicy& dtypes) {
  ModuleTreeOptions options;
  options.dtypes = dtypes;
  const auto tree = ModuleTree::Make(index, options);
  EXPECT_THAT(tree, IsOk());
  return tree.ok() ? tree->nodes[0].bits : 0;
}

std::string DeepName(int depth) {
  std::string name = "a";
  for (int i = 1; i < depth; ++i) name += ".a";
  return name;
}

TEST(ModuleTree, HasNumbersByValueAndTensorsBeforeModules) {
  FakeSource source;
  for (const char* name : {"h.10.w", "h.9.w", "h.9.a.w", "h.b"}) source.Add(name, {1});
  EXPECT_THAT(NamesOf(ModuleTree::Make(source.index(), {})),
              ElementsAre("", "h", "h.b", "h.9", "h.9.w", "h.9.a", "h.9.a.w", "h.10", "h.10.w"));
}

TEST(ModuleTree, HasEmbeddingsFirstAndHeadsLast) {
  FakeSource source;
  for (const char* name : {"lm_head.w", "m.embed_tokens.w", "m.layers.w", "m.norm.w", "m.a.w"}) {
    source.Add(name, {1});
  }
  EXPECT_THAT(NamesOf(ModuleTree::Make(source.index(), {})),
              ElementsAre("", "m", "m.embed_tokens", "m.embed_tokens.w", "m.a", "m.a.w", "m.layers",
                          "m.layers.w", "m.norm", "m.norm.w", "lm_head", "lm_head.w"));
}

TEST(ModuleTree, HasALayerAsLlamaDefinesIt) {
  FakeSource source;
  for (const char* name : {"mlp.down_proj.w", "mlp.gate_proj.w", "mlp.up_proj.w", "norm.w",
                           "self_attn.k_proj.w", "self_attn.o_proj.w", "self_attn.q_proj.w",
                           "self_attn.v_proj.w"}) {
    source.Add(name, {1});
  }
  EXPECT_THAT(
      NamesOf(ModuleTree::Make(source.index(), {})),
      ElementsAre("", "self_attn", "self_attn.q_proj", "self_attn.q_proj.w", "self_attn.k_proj",
                  "self_attn.k_proj.w", "self_attn.v_proj", "self_attn.v_proj.w",
                  "self_attn.o_proj", "self_attn.o_proj.w", "mlp", "mlp.gate_proj",
                  "mlp.gate_proj.w", "mlp.up_proj", "mlp.up_proj.w", "mlp.down_proj",
                  "mlp.down_proj.w", "norm", "norm.w"));
}

TEST(ModuleTree, HasTheOrderThatIsAskedFor) {
  FakeSource source;
  for (const char* name : {"a.w", "b.w", "c.w", "head.w"}) source.Add(name, {1});
  ModuleTreeOptions options;
  options.order = {"he*", "b"};
  EXPECT_THAT(NamesOf(ModuleTree::Make(source.index(), options)),
              ElementsAre("", "head", "head.w", "b", "b.w", "a", "a.w", "c", "c.w"));
}

TEST(ModuleTree, CountsFloatsAsTheyWillBeAndIntegersAsTheyAre) {
  FakeSource source;
  source.Add("a.f32", {8}, Dtype::kF32);
  source.Add("a.bf16", {8}, Dtype::kBF16);
  source.Add("a.fp8", {8}, Dtype::kF8E4M3);
  source.Add("b.i64", {8}, Dtype::kI64);
  source.Add("b.bool", {8}, Dtype::kBool);
  EXPECT_EQ(BitsOfAll(source.index(), {}), 8u * (32 + 16 + 8 + 64 + 1));
  EXPECT_EQ(BitsOfAll(source.index(), {Dtype::kF16, {}}), 8u * (16 + 16 + 8 + 64 + 1));
  EXPECT_EQ(BitsOfAll(source.index(), {Dtype::kF16, {"*.bf16", "b.*"}}),
            8u * (16 + 32 + 8 + 64 + 1));
}

TEST(ModuleTree, CountsATensorUnderItsFirstName) {
  FakeSource source;
  source.Add("m.embed.w", {8}, Dtype::kF32);
  source.Add("head.w", {8}, Dtype::kF32);
  ModuleTreeOptions options;
  options.tied = {{"head.w", "m.embed.w"}};
  const auto tree = ModuleTree::Make(source.index(), options);
  ASSERT_THAT(tree, IsOk());
  EXPECT_EQ(tree->nodes[0].bits, 8u * 32);
  EXPECT_EQ(tree->nodes.back().name, "head.w");
  EXPECT_EQ(tree->nodes.back().bits, 0u);
  EXPECT_FALSE(tree->nodes.back().has_size);
}

TEST(ModuleTree, RefusesNamesThatMakeNoTree) {
  const auto refused = FailsWith(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST");
  for (const auto& names : std::vector<std::vector<std::string>>{
           {"a", "a.b"}, {".a"}, {"a."}, {"a..b"}, {""}, {DeepName(65)}}) {
    FakeSource source;
    for (const std::string& name : names) source.Add(name, {1});
    EXPECT_THAT(ModuleTree::Make(source.index(), {}), refused);
  }
  FakeSource source;
  source.Add("a", {1});
  for (const std::map<std::string, std::string>& tied :
       {std::map<std::string, std::string>{{"b", "nothing"}}, {{"a", "a"}}, {{"b", "a"}, {"a", "b"}}}) {
    ModuleTreeOptions options;
    options.tied = tied;
    EXPECT_THAT(ModuleTree::Make(source.index(), options), refused);
  }
}

TEST(ModuleTree, RefusesSizesBeyondAllUse) {
  FakeSource source;
  TensorEntry huge;
  huge.name = "huge";
  huge.dtype = Dtype::kF32;
  huge.shape = {uint64_t{1} << 40, uint64_t{1} << 40};
  source.index().tensors = {huge};
  EXPECT_THAT(ModuleTree::Make(source.index(), {}),
              FailsWith(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST"));
}

}  // namespace
}  // namespace ckptd
