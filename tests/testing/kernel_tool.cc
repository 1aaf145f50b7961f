// kernel_tool single|batch: runs copies by the host twins of the kernels, each by its own
// launch or all tasks of a copy by one. A copy on standard input is a line of words and
// numbers, then bytes:
//   FROM TO SKEW BLOCK_BEGIN BLOCK_BYTES BEGIN RUN_BYTES DIMS COUNT... SOURCE_STRIDE...
//     TARGET_STRIDE... TARGET_OFFSET TARGET_BYTES
//   BLOCK_BYTES of the source from BLOCK_BEGIN on, TARGET_BYTES that the target holds before
// The block lies SKEW bytes behind a multiple of 64. The target's bytes come out.
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "server/memory/cuda/kernels/params.h"
#include "server/memory/cuda/kernels/tasks.h"

extern "C" {
void ckptd_pack_twin(const void* params, unsigned grid, unsigned block);
void ckptd_cast_twin(const void* params, unsigned grid, unsigned block);
void ckptd_batch_twin(const void* params, unsigned grid, unsigned block);
}

namespace ckptd::kernels {
namespace {

// Bytes that begin `skew` behind a multiple of 64. What is left of their last 16 may be read.
class SkewedBytes {
 public:
  SkewedBytes(size_t bytes, size_t skew) : memory_(bytes + skew + 64 + 16) {
    const auto address = reinterpret_cast<uint64_t>(memory_.data());
    at_ = memory_.data() + (64 - address % 64) + skew;
  }
  std::byte* data() { return at_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(at_); }

 private:
  std::vector<std::byte> memory_;
  std::byte* at_ = nullptr;
};

void RunSingle(const std::vector<CopyTask>& tasks) {
  for (const CopyTask& task : tasks) {
    const TaskParams params = {task};
    const auto tiles = static_cast<unsigned>(TilesOf(task));
    (task.way < kFirstCast ? ckptd_pack_twin : ckptd_cast_twin)(&params, tiles, kThreads);
  }
}

bool RunBatch(const std::vector<CopyTask>& tasks) {
  if (tasks.empty()) return true;
  std::vector<uint64_t> table(TableBytes(tasks.size()) / sizeof(uint64_t) + 1);
  const auto tiles = WriteTable(tasks, std::as_writable_bytes(std::span(table)));
  if (!tiles.ok()) return false;
  const BatchParams params = {
      TableAt(reinterpret_cast<uint64_t>(table.data()), static_cast<uint32_t>(tasks.size()))};
  ckptd_batch_twin(&params, *tiles, kThreads);
  return true;
}

struct Job {
  BlockCopy copy;
  SourceBlock block;
  size_t skew = 0;
  size_t target_offset = 0;
  size_t target_bytes = 0;
};

bool ReadJob(std::istream& in, Job& job) {
  std::string from;
  std::string to;
  if (!(in >> from >> to)) return false;
  job.copy.from = ParseDtype(from).value_or(Dtype::kUnspecified);
  job.copy.to = ParseDtype(to).value_or(Dtype::kUnspecified);
  in >> job.skew >> job.block.begin >> job.block.bytes >> job.copy.begin >> job.copy.run_bytes >>
      job.copy.dims;
  for (auto* list : {&job.copy.count, &job.copy.source_stride, &job.copy.target_stride}) {
    for (uint32_t d = 0; d < job.copy.dims && d < kMaxDims; ++d) in >> (*list)[d];
  }
  in >> job.target_offset >> job.target_bytes;
  in.get();  // the end of the line
  return in.good();
}

bool RunJob(std::istream& in, Job& job, bool batch) {
  SkewedBytes block(job.block.bytes, job.skew);
  SkewedBytes target(job.target_bytes, 0);
  in.read(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(job.block.bytes));
  in.read(reinterpret_cast<char*>(target.data()), static_cast<std::streamsize>(job.target_bytes));
  job.block.address = block.address();
  job.copy.target = target.address() + job.target_offset;
  job.copy.room = job.target_bytes - job.target_offset;
  std::vector<CopyTask> tasks;
  if (const auto status = AppendTasks(job.block, job.copy, tasks); !status.ok()) {
    std::cerr << status.ToString() << "\n";
    return false;
  }
  if (batch ? !RunBatch(tasks) : (RunSingle(tasks), false)) return false;
  std::cout.write(reinterpret_cast<const char*>(target.data()),
                  static_cast<std::streamsize>(job.target_bytes));
  return in.good() && std::cout.good();
}

}  // namespace
}  // namespace ckptd::kernels

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  const std::string mode = argc == 2 ? argv[1] : "";
  if (mode != "single" && mode != "batch") {
    std::cerr << "usage: kernel_tool single|batch\n";
    return 2;
  }
  ckptd::kernels::Job job;
  while (ckptd::kernels::ReadJob(std::cin, job)) {
    if (!ckptd::kernels::RunJob(std::cin, job, mode == "batch")) return 1;
  }
  return 0;
}
