// What every format keeps. Sources are written by the format's own rules into a storage that is no
// file system: who reads past the seam finds nothing.
#ifndef CKPTD_TESTS_CONTRACT_FORMAT_FORMAT_CONTRACT_H_
#define CKPTD_TESTS_CONTRACT_FORMAT_FORMAT_CONTRACT_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/format.h"
#include "common/source/piece.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_bytes.h"

namespace ckptd {

struct TensorOfFormat {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;
  std::vector<std::byte> bytes;  // row-major
};

struct FormatCase {
  std::string name;
  const CheckpointFormat* format = nullptr;
  // Writes these tensors, of two dimensions each, and returns the source's path.
  std::function<std::string(MemoryStorage& storage, const std::vector<TensorOfFormat>& tensors)>
      write;
  // Types that the format does not have.
  std::set<Dtype> lacks = {};
};

class FormatContract : public testing::TestWithParam<FormatCase> {
 protected:
  FormatContract() {
    std::mt19937 random(1);
    const std::vector<std::pair<Dtype, Shape>> kinds = {{Dtype::kF32, {4, 3}},
                                                        {Dtype::kBF16, {5, 1}},
                                                        {Dtype::kU8, {2, 7}},
                                                        {Dtype::kI64, {0, 3}},
                                                        {Dtype::kF64, {1, 2}}};
    for (const auto& [dtype, shape] : kinds) {
      if (GetParam().lacks.contains(dtype)) continue;
      TensorOfFormat& tensor = tensors_.emplace_back();
      tensor.name = "t." + std::to_string(9 - tensors_.size());
      tensor.dtype = dtype;
      tensor.shape = shape;
      tensor.bytes.resize(ElementCount(shape) * BitsOf(dtype) / 8);
      for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
    }
    source_ = GetParam().write(storage_, tensors_);
  }

  const CheckpointFormat& format() const { return *GetParam().format; }
  Listing List() const { return ListSource(storage_, source_).value(); }
  absl::StatusOr<OpenedCheckpoint> Read() const { return format().ReadIndex(storage_, List()); }

  // What an index keeps, whatever bytes it was made of.
  static void CheckIndex(const CheckpointIndex& index) {
    for (size_t i = 0; i < index.tensors.size(); ++i) {
      const TensorEntry& tensor = index.tensors[i];
      EXPECT_TRUE(i == 0 || index.tensors[i - 1].name < tensor.name) << tensor.name;
      EXPECT_LT(tensor.group, index.groups.size());
      EXPECT_FALSE(tensor.pieces.empty()) << tensor.name;
      uint64_t elements = 0;
      for (const Piece& piece : tensor.pieces) {
        ASSERT_LT(piece.file, index.files.size());
        EXPECT_EQ(WhyImpossible(piece, tensor, index.files[piece.file].bytes), "") << tensor.name;
        elements += ElementCount(piece.box.extents);
      }
      EXPECT_EQ(elements, ElementCount(tensor.shape)) << tensor.name;
    }
    for (const auto& [alias, name] : index.aliases) EXPECT_NE(index.Find(name), nullptr) << alias;
  }

  MemoryStorage storage_;
  std::vector<TensorOfFormat> tensors_;
  std::string source_;
};

TEST_P(FormatContract, RecognisesItsOwnSourcesAndNoOthers) {
  EXPECT_TRUE(format().Recognise(storage_, List()));
  storage_.Write("/other/readme.txt", "nothing to load");
  for (const char* other : {"/other", "/other/readme.txt"}) {
    ASSERT_OK_AND_ASSIGN(const Listing listing, ListSource(storage_, other));
    EXPECT_FALSE(format().Recognise(storage_, listing)) << other;
    EXPECT_FALSE(format().Check(storage_, listing).ok()) << other;
    EXPECT_FALSE(format().ReadIndex(storage_, listing).ok()) << other;
  }
}

TEST_P(FormatContract, HasANameForPeople) { EXPECT_NE(format().name(), ""); }

TEST_P(FormatContract, HoldsEveryTensorWithItsBytes) {
  EXPECT_OK(format().Check(storage_, List()));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  const CheckpointIndex& index = opened.index;
  CheckIndex(index);
  ASSERT_EQ(index.tensors.size(), tensors_.size());
  for (const TensorOfFormat& want : tensors_) {
    const TensorEntry* const have = index.Find(want.name);
    ASSERT_NE(have, nullptr) << want.name;
    EXPECT_EQ(have->dtype, want.dtype);
    EXPECT_EQ(have->shape, want.shape);
    EXPECT_EQ(TensorBytes(storage_, index, *have), want.bytes) << want.name;
  }
}

TEST_P(FormatContract, KnowsItsFilesAgain) {
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  std::set<std::string> paths;
  for (const SourceFile& file : opened.index.files) {
    EXPECT_TRUE(paths.insert(file.path).second) << file.path << " is there twice";
    ASSERT_OK_AND_ASSIGN(const Storage::Found found, storage_.Stat(file.path));
    EXPECT_EQ(storage_.WhatChanged(file, found.identity), "");
  }
  EXPECT_THAT(format().StillMeans(storage_, List(), opened.index.files), IsOk());
  EXPECT_TRUE(*format().StillMeans(storage_, List(), opened.index.files));
}

TEST_P(FormatContract, NamesTheFileThatIsCut) {
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  for (const SourceFile& file : opened.index.files) {
    const std::string whole = storage_.Bytes(file.path);
    for (const size_t left : {whole.size() - 1, whole.size() / 2, size_t{1}}) {
      storage_.Write(file.path, whole.substr(0, left));
      const auto cut = Read();
      ASSERT_FALSE(cut.ok()) << file.path << " of " << left << " bytes";
      EXPECT_EQ(ReasonOf(cut.status()), reason::kSourceInvalid) << cut.status();
      EXPECT_EQ(FactsOf(cut.status())["file"], file.path) << cut.status();
    }
    storage_.Write(file.path, whole);
  }
}

// An error that says what is wrong, or an index that holds together.
TEST_P(FormatContract, TakesAnyBytes) {
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  std::mt19937 random(7);
  for (const SourceFile& file : opened.index.files) {
    const std::string whole = storage_.Bytes(file.path);
    for (int i = 0; i < 300; ++i) {
      std::string spoiled = whole;
      for (int flips = 0; flips < 3; ++flips) {
        spoiled[random() % std::min<size_t>(spoiled.size(), 300)] = static_cast<char>(random());
      }
      storage_.Write(file.path, spoiled);
      const auto read = Read();
      if (read.ok()) {
        CheckIndex(read->index);
      } else {
        EXPECT_NE(read.status().code(), absl::StatusCode::kInternal) << read.status();
        EXPECT_EQ(FactsOf(read.status()).count("file"), 1u) << read.status();
      }
    }
    storage_.Write(file.path, whole);
  }
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_FORMAT_FORMAT_CONTRACT_H_
