// A small world for transfer tests: files with random bytes, tensors in them, copies into the
// slabs of some ranks, and the expected result of each rank, computed row by row.
#ifndef CKPTD_TESTS_TESTING_TRANSFER_WORLD_H_
#define CKPTD_TESTS_TESTING_TRANSFER_WORLD_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "server/transfer/transfer_types.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {

// A box of a three-dimensional array.
struct Box3 {
  uint64_t from[3] = {};
  uint64_t size[3] = {};
};

class World {
 public:
  World(size_t files, size_t ranks);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Appends `bytes` random bytes to a file; returns where they start.
  uint64_t AddBytes(size_t file, uint64_t bytes, uint64_t seed);

  // Adds a tensor to a rank: a box of the array of `dtype` at `offset` of the file, cast to `to`.
  // If `columns` > 0, the file stores the array in two pieces: its first `columns` of the last
  // dimension, then the others.
  void AddTensor(size_t rank, size_t file, uint64_t offset, Dtype dtype, Dtype to,
                 const uint64_t (&shape)[3], const Box3& box, uint64_t columns = 0);

  // Writes the files and makes slabs of segments of `segment_bytes`.
  void Finish(uint64_t segment_bytes);

  // Whether the tensors that are added have numbers whose highest byte comes first.
  bool big_endian = false;
  // Whose signs are other ones; of real numbers all are, or none.
  Signs negate = Signs::kNone;

  CheckpointIndex index;
  std::vector<RankPlan> plans;
  std::vector<TransferTarget> targets;
  std::vector<std::vector<std::vector<std::byte>>> expected;  // per rank, per tensor

  // A rank's slab as one piece of memory (a copy).
  std::vector<std::byte> Slab(size_t rank) const;
  std::vector<std::byte> Tensor(size_t rank, size_t tensor) const;
  const std::vector<std::byte>& Content(size_t file) const { return contents_[file]; }
  // Distinct bytes that tensors are made of.
  uint64_t NeededBytes() const;

 private:
  void AddPiece(size_t rank, size_t file, uint64_t offset, const uint64_t (&shape)[3],
                const Box3& box, uint64_t first_column);

  TempFolder folder_;
  std::vector<std::vector<std::byte>> contents_;
  std::vector<std::vector<bool>> needed_;
  std::vector<std::vector<std::vector<std::byte>>> segments_;
};

// Many tensors of all kinds: chunked by rows or columns, replicated, boxes, stored in two pieces,
// cast or not, tiny ones and up to `largest_bytes`.
void FillAtRandom(World& world, uint64_t seed, uint64_t largest_bytes);

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_TRANSFER_WORLD_H_
