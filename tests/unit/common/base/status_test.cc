#include "common/base/status.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/reasons.h"

namespace ckptd {
namespace {

std::string SentenceOf(const std::string& text) {
  return MessageOf(MakeError(absl::StatusCode::kNotFound, reason::kTensorNotFound, text));
}

TEST(Sentence, IsOneLineWhateverNamesItHolds) {
  EXPECT_EQ(SentenceOf("tensor 'a\nb\x7f\r' is \xc3\xa4 b"), "tensor 'a?b?" "?' is \xc3\xa4 b");
}

TEST(Sentence, KeepsItsBeginAndItsAdviceWhenANameIsLong) {
  const std::string sentence =
      SentenceOf("tensor '" + std::string(60'000, 'x') + "' is missing; load another file");
  EXPECT_LE(sentence.size(), 2000u);
  EXPECT_TRUE(sentence.starts_with("tensor 'xxx"));
  EXPECT_TRUE(sentence.ends_with("xxx' is missing; load another file"));
}

TEST(Sentence, IsNotCutInsideACharacter) {
  std::string name;
  for (int i = 0; i < 2000; ++i) name += "\xe2\x82\xac";  // three bytes each
  for (const std::string prefix : {"", "1", "12"}) {
    const std::string sentence = SentenceOf(prefix + name);
    const size_t gap = sentence.find(" ... ");
    ASSERT_NE(gap, std::string::npos);
    EXPECT_EQ((gap - prefix.size()) % 3, 0u);
    EXPECT_EQ((sentence.size() - gap - 5) % 3, 0u);
  }
}

TEST(Sentence, OfAUsualLengthIsLeftAsItIs) {
  const std::string usual(2000, 'x');
  EXPECT_EQ(SentenceOf(usual), usual);
}

TEST(Facts, ArePreservedWithContext) {
  const absl::Status status =
      MakeError(absl::StatusCode::kNotFound, reason::kTensorNotFound, "why", {{"tensor", "a\nb"}});
  const absl::Status longer = WithContext(status, "doing");
  EXPECT_EQ(MessageOf(longer), "doing: why");
  EXPECT_EQ(ReasonOf(longer), reason::kTensorNotFound);
  EXPECT_EQ(FactsOf(longer).at("tensor"), "a\nb");
}

}  // namespace
}  // namespace ckptd
