// Sources made at random, of few kinds of tensors: rows and columns, in one piece or
// several, in two files, some sharing bytes, some empty; and layouts for six ranks.
#ifndef CKPTD_TESTS_TESTING_RANDOM_SOURCE_H_
#define CKPTD_TESTS_TESTING_RANDOM_SOURCE_H_

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "common/source/index.h"

namespace ckptd {

class RandomSource {
 public:
  RandomSource(uint64_t seed, size_t tensors) : random_(seed) {
    index.source = "/c";
    index.files = {{"/c/a", 100, "2", "4", "1", 3}, {"/c/b", 8, "3", "4", "1", 3}};
    for (size_t i = 0; i < tensors; ++i) Add();
    std::sort(index.tensors.begin(), index.tensors.end(),
              [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
    index.aliases["tied"] = index.tensors.front().name;
  }

  CheckpointIndex index;

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }

  void Add() {
    const Shape shapes[] = {{7, 4}, {12}, {5, 6, 2}, {0, 3}, {3, 16}, {}};
    TensorEntry tensor;
    tensor.name = fmt::format("{}.{:04x}", "abcd"[Below(4)], index.tensors.size() * 7919 % 65536);
    tensor.dtype = Below(3) == 0 ? Dtype::kF32 : Dtype::kU32;
    tensor.shape = shapes[Below(std::size(shapes))];
    const uint64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const uint64_t cut = Below(4) == 0 && rows > 1 ? 1 + Below(rows - 1) : rows;
    AddPiece(0, cut, tensor);
    if (cut < rows) AddPiece(cut, rows, tensor);
    // Two tensors over one storage.
    if (!index.tensors.empty() && Below(6) == 0 && index.tensors.back().shape == tensor.shape) {
      tensor.pieces = index.tensors.back().pieces;
      tensor.dtype = index.tensors.back().dtype;
    }
    index.tensors.push_back(std::move(tensor));
  }

  // Rows [first, last), behind a gap now and then.
  void AddPiece(uint64_t first, uint64_t last, TensorEntry& tensor) {
    Piece piece;
    piece.file = static_cast<uint32_t>(Below(2));
    piece.box = {Shape(tensor.shape.size(), 0), tensor.shape};
    if (!tensor.shape.empty()) {
      piece.box.offsets[0] = first;
      piece.box.extents[0] = last - first;
    }
    piece.bytes = ElementCount(piece.box.extents) * 4;
    piece.offset = index.files[piece.file].bytes;
    index.files[piece.file].bytes += piece.bytes + Below(3) * 4;
    tensor.pieces.push_back(std::move(piece));
  }

  std::mt19937_64 random_;
};

// Files of random bytes in `folder`, as long as the index says; it then says where they are.
inline void WriteFiles(const std::string& folder, CheckpointIndex& index) {
  for (SourceFile& file : index.files) {
    const std::string path = folder + "/" + std::filesystem::path(file.path).filename().string();
    std::mt19937 random(static_cast<unsigned>(file.bytes));
    std::string content(file.bytes, '\0');
    for (char& c : content) c = static_cast<char>(random());
    std::ofstream(path, std::ios::binary) << content;
    file = {};
    file.path = path;
    file.bytes = content.size();
  }
}

// Layouts of six ranks in every form that a group may take.
inline const std::vector<std::string>& SixRankLayouts() {
  static const std::vector<std::string> layouts = {
      "fsdp:6",
      "hsdp:2x3",
      "replicate:6",
      R"j({"world_size": 6, "meshes": {"dense": {"shape": [2, 2], "ranks": [0, 1, 2, 3]},
                                      "last": {"shape": [2], "ranks": [5, 4]}},
          "rules": [{"match": "a.*", "mesh": "dense", 
                     "placements": ["strided_shard(0,2)", "shard(0)"]},
                    {"match": "b.*", "mesh": "last", "placements": ["shard(-1)"], "dtype": "BF16"},
                    {"match": "c.1*", "drop": true},
                    {"match": "c.*", "only_ranks": [1, 2, 5]}],
          "default": {"dtype": "F16"}})j"};
  return layouts;
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_RANDOM_SOURCE_H_
