#include "tests/testing/transfer_world.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "common/base/byte_swap.h"
#include "common/cast/cast.h"

namespace ckptd {

World::World(size_t files, size_t ranks)
    : plans(ranks), expected(ranks), contents_(files), needed_(files), segments_(ranks) {
  for (size_t i = 0; i < files; ++i) {
    SourceFile file;
    file.path = folder_ / fmt::format("part{}", i);
    index.files.push_back(file);
  }
  for (size_t r = 0; r < ranks; ++r) plans[r].rank = static_cast<uint32_t>(r);
}

uint64_t World::AddBytes(size_t file, uint64_t bytes, uint64_t seed) {
  std::vector<std::byte>& content = contents_[file];
  const uint64_t offset = content.size();
  std::mt19937_64 random(seed);
  content.resize(offset + bytes);
  for (uint64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(&content[offset + i], &word, std::min<uint64_t>(8, bytes - i));
  }
  needed_[file].resize(content.size());
  return offset;
}

void World::AddPiece(size_t rank, size_t file, uint64_t offset, const uint64_t (&shape)[3],
                     const Box3& box, uint64_t first_column) {
  RankPlan& plan = plans[rank];
  const PlannedTensor& tensor = plan.tensors.back();
  const uint64_t local_columns = tensor.shape[2];
  const uint64_t from = BitsOf(plan.ops.back().from) / 8;
  const uint64_t to = BitsOf(plan.ops.back().to) / 8;
  CopyOp op = plan.ops.back();
  op.file = static_cast<uint32_t>(file);
  op.file_offset =
      offset + ((box.from[0] * shape[1] + box.from[1]) * shape[2] + box.from[2]) * from;
  op.slab_offset = tensor.offset + first_column * to;
  op.run_bytes = box.size[2] * from;
  op.dims = 2;
  op.count = {box.size[0], box.size[1]};
  op.file_stride = {shape[1] * shape[2] * from, shape[2] * from};
  op.slab_stride = {box.size[1] * local_columns * to, local_columns * to};
  plan.ops.back() = op;
  std::vector<std::byte>& local = expected[rank].back();
  for (uint64_t i = 0; i < box.size[0]; ++i) {
    for (uint64_t j = 0; j < box.size[1]; ++j) {
      if (box.size[2] == 0) continue;
      const uint64_t element =
          ((box.from[0] + i) * shape[1] + box.from[1] + j) * shape[2] + box.from[2];
      const uint64_t at = (i * box.size[1] + j) * local_columns + first_column;
      const uint64_t begin = offset + element * from;
      std::vector<std::byte> row(box.size[2] * from);
      SwapBytes(op.swap, &contents_[file][begin], row.data(), row.size());
      NegateNumbers(NumberBytesOf(op.from), op.negate, row.data(), row.size());
      Cast(op.from, op.to, row.data(), &local[at * to], box.size[2]);
      const auto needed = needed_[file].begin() + static_cast<ptrdiff_t>(begin);
      std::fill(needed, needed + static_cast<ptrdiff_t>(box.size[2] * from), true);
    }
  }
}

void World::AddTensor(size_t rank, size_t file, uint64_t offset, Dtype dtype, Dtype to,
                      const uint64_t (&shape)[3], const Box3& box, uint64_t columns) {
  RankPlan& plan = plans[rank];
  PlannedTensor tensor;
  tensor.name = fmt::format("t{}", plan.tensors.size());
  tensor.dtype = to;
  tensor.shape = {box.size[0], box.size[1], box.size[2]};
  tensor.offset = plan.slab_bytes;
  tensor.bytes = box.size[0] * box.size[1] * box.size[2] * (BitsOf(to) / 8);
  tensor.padded_bytes = tensor.bytes + 24;
  plan.slab_bytes += (tensor.padded_bytes + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment;
  plan.tensor_bytes += tensor.bytes;
  plan.tensors.push_back(tensor);
  expected[rank].emplace_back(tensor.bytes);
  CopyOp op;
  op.tensor = static_cast<uint32_t>(plan.tensors.size() - 1);
  op.from = dtype;
  op.to = to;
  if (big_endian) op.swap = NumberBytesOf(dtype);
  if (HasSigns(dtype)) op.negate = IsComplex(dtype) || negate == Signs::kNone ? negate : Signs::kBoth;
  plan.ops.push_back(op);
  if (columns == 0) return AddPiece(rank, file, offset, shape, box, 0);
  // Only whole boxes come in two pieces.
  const uint64_t left[3] = {shape[0], shape[1], columns};
  const uint64_t right[3] = {shape[0], shape[1], shape[2] - columns};
  AddPiece(rank, file, offset, left, {{0, 0, 0}, {left[0], left[1], left[2]}}, 0);
  plan.ops.push_back(op);
  AddPiece(rank, file, offset + shape[0] * shape[1] * columns * (BitsOf(dtype) / 8), right,
           {{0, 0, 0}, {right[0], right[1], right[2]}}, columns);
}

void World::Finish(uint64_t segment_bytes) {
  for (size_t i = 0; i < contents_.size(); ++i) {
    std::ofstream out(index.files[i].path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(contents_[i].data()),
              static_cast<std::streamsize>(contents_[i].size()));
    index.files[i].bytes = contents_[i].size();
  }
  for (size_t r = 0; r < plans.size(); ++r) {
    std::stable_sort(plans[r].ops.begin(), plans[r].ops.end(),
                     [](const CopyOp& a, const CopyOp& b) {
                       return a.file != b.file ? a.file < b.file : a.file_offset < b.file_offset;
                     });
    TransferTarget target;
    target.plan = &plans[r];
    segments_[r].reserve(plans[r].slab_bytes / segment_bytes + 1);
    for (uint64_t at = 0; at < plans[r].slab_bytes; at += segment_bytes) {
      segments_[r].emplace_back(std::min(segment_bytes, plans[r].slab_bytes - at), std::byte{0xee});
      target.slab.segments.emplace_back(segments_[r].back());
    }
    targets.push_back(target);
  }
}

std::vector<std::byte> World::Slab(size_t rank) const {
  std::vector<std::byte> whole;
  for (const auto& segment : segments_[rank]) {
    whole.insert(whole.end(), segment.begin(), segment.end());
  }
  return whole;
}

std::vector<std::byte> World::Tensor(size_t rank, size_t tensor) const {
  const PlannedTensor& planned = plans[rank].tensors[tensor];
  std::vector<std::byte> bytes;
  uint64_t start = 0;  // of the segment
  for (const auto& segment : segments_[rank]) {
    const uint64_t end = start + segment.size();
    const uint64_t from = std::clamp(planned.offset, start, end);
    const uint64_t to = std::clamp(planned.offset + planned.bytes, start, end);
    bytes.insert(bytes.end(), segment.begin() + static_cast<ptrdiff_t>(from - start),
                 segment.begin() + static_cast<ptrdiff_t>(to - start));
    start = end;
  }
  return bytes;
}

uint64_t World::NeededBytes() const {
  uint64_t total = 0;
  for (const auto& file : needed_) {
    total += static_cast<uint64_t>(std::count(file.begin(), file.end(), true));
  }
  return total;
}

namespace {

Box3 Chunk(const uint64_t (&shape)[3], int dimension, size_t rank, size_t ranks) {
  Box3 box = {{0, 0, 0}, {shape[0], shape[1], shape[2]}};
  const uint64_t chunk = (shape[dimension] + ranks - 1) / ranks;
  box.from[dimension] = std::min(shape[dimension], rank * chunk);
  box.size[dimension] =
      std::min(shape[dimension], box.from[dimension] + chunk) - box.from[dimension];
  return box;
}

}  // namespace

void FillAtRandom(World& world, uint64_t seed, uint64_t largest_bytes) {
  std::mt19937_64 random(seed);
  const auto below = [&random](uint64_t n) { return random() % n; };
  const Dtype types[] = {Dtype::kF16, Dtype::kBF16, Dtype::kF32, Dtype::kF64};
  const size_t ranks = world.plans.size();
  for (size_t file = 0; file < world.index.files.size(); ++file) {
    world.AddBytes(file, 8 + below(100), random());  // a header
    const size_t tensors = 4 + below(8);
    for (size_t t = 0; t < tensors; ++t) {
      constexpr Dtype kUncast[] = {Dtype::kU8, Dtype::kI16, Dtype::kC64, Dtype::kC128};
      const Dtype from = below(4) == 0 ? kUncast[below(4)] : types[below(4)];
      const Dtype to = IsCastable(from) && below(2) == 0 ? types[below(4)] : from;
      world.big_endian = below(3) == 0;
      world.negate = below(3) == 0 ? static_cast<Signs>(below(4)) : Signs::kNone;
      const uint64_t size = BitsOf(from) / 8;
      const uint64_t most = below(4) == 0 ? largest_bytes / size : 1 + below(5000);
      const uint64_t columns = 1 + below(std::min<uint64_t>(most, 3000));
      const uint64_t planes = 1 + below(3);
      const uint64_t shape[3] = {planes, 1 + most / columns / planes, columns};
      const uint64_t offset = world.AddBytes(file, shape[0] * shape[1] * shape[2] * size, random());
      const uint64_t kind = below(6);
      for (size_t rank = 0; rank < ranks; ++rank) {
        Box3 box = Chunk(shape, static_cast<int>(below(3)), rank, ranks);
        if (kind < 3) box = Chunk(shape, static_cast<int>(kind), rank, ranks);
        if (kind >= 4) box = {{0, 0, 0}, {shape[0], shape[1], shape[2]}};
        const uint64_t split = kind == 5 && columns > 1 ? 1 + columns / 3 : 0;
        if (kind == 3 && below(3) == 0) continue;  // this rank does not want it
        world.AddTensor(rank, file, offset, from, to, shape, box, split);
      }
    }
  }
}

}  // namespace ckptd
