// Measures RunTransfer against the floor of this machine: as many threads as
// cores reading the same bytes with 16 MiB preads into a faulted memfd. Samples
// are interleaved, each paired with the floor samples beside it, because clock
// speed and neighbours drift; only the ratios mean something.
//
//   transfer_bench [DIRECTORY] [ROUNDS] [THREADS] [ONLY] [small]
//
// Writes a 1.6 GB file into DIRECTORY (default: the temporary one) and removes
// it at the end; needs 10 GB of memory. ONLY: just the variants whose names
// contain it. small: the page cache holds the file in pages of 4 KiB, as file systems do
// that know no larger ones.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/digest.h"
#include "common/base/posix.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

constexpr size_t kRanks = 4;
constexpr uint64_t kRowBytes = 2 * 2048;

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

[[noreturn]] void Die(const std::string& why) {
  fmt::print(stderr, "transfer_bench: {}\n", why);
  std::exit(1);
}

Mapping FaultedMemfd(uint64_t bytes) {
  const UniqueFd fd(::memfd_create("bench", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) Die("memfd_create");
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (address == MAP_FAILED) Die("mmap of the target");
  return Mapping(address, bytes);
}

// Rows of the 147 bf16 tensors: a small decoder's mix of large and tiny ones.
std::vector<uint64_t> TensorRows() {
  std::vector<uint64_t> rows = {32000};
  for (int layer = 0; layer < 16; ++layer) {
    for (const uint64_t r : {2048, 512, 512, 2048, 5504, 5504, 5504, 1, 1}) rows.push_back(r);
  }
  rows.push_back(1);
  rows.push_back(32000);
  return rows;
}

enum class Shape { kRows, kColumns, kReplicated, kCast };

struct Setup {
  CheckpointIndex index;
  std::vector<RankPlan> plans;
  std::vector<Mapping> memory;
  std::vector<TransferTarget> targets;
};

void AddTensor(Setup& setup, Shape shape, uint64_t rows, uint64_t file_offset, size_t number) {
  const uint64_t chunk = (rows + kRanks - 1) / kRanks;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    RankPlan& plan = setup.plans[rank];
    const uint64_t first = std::min(rows, rank * chunk);
    const uint64_t mine = std::min(rows, first + chunk) - first;
    CopyOp op;
    op.tensor = static_cast<uint32_t>(plan.tensors.size());
    op.from = Dtype::kBF16;
    op.to = shape == Shape::kCast ? Dtype::kF32 : Dtype::kBF16;
    op.slab_offset = plan.slab_bytes;
    op.file_offset = file_offset + first * kRowBytes;
    op.run_bytes = mine * kRowBytes;
    uint64_t bytes = op.run_bytes * (shape == Shape::kCast ? 2 : 1);
    if (shape == Shape::kReplicated) {
      op.file_offset = file_offset;
      bytes = op.run_bytes = rows * kRowBytes;
    }
    if (shape == Shape::kColumns) {
      op.run_bytes = kRowBytes / kRanks;
      op.file_offset = file_offset + rank * op.run_bytes;
      op.dims = 1;
      op.count[0] = rows;
      op.file_stride[0] = kRowBytes;
      op.slab_stride[0] = op.run_bytes;
      bytes = rows * op.run_bytes;
    }
    PlannedTensor tensor;
    tensor.name = fmt::format("t{:03}", number);
    tensor.offset = plan.slab_bytes;
    tensor.bytes = tensor.padded_bytes = bytes;
    plan.tensors.push_back(tensor);
    if (bytes > 0) plan.ops.push_back(op);
    plan.tensor_bytes += bytes;
    plan.slab_bytes += (bytes + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment;
  }
}

Setup MakeSetup(const std::string& path, uint64_t file_bytes, Shape shape) {
  Setup setup;
  setup.index.files.push_back({});
  setup.index.files[0].path = path;
  setup.index.files[0].bytes = file_bytes;
  setup.plans.resize(kRanks);
  uint64_t offset = 4096 + 8;  // a header of odd length, as real files have
  size_t number = 0;
  for (const uint64_t rows : TensorRows()) {
    AddTensor(setup, shape, rows, offset, number++);
    offset += rows * kRowBytes;
  }
  return setup;
}

void GiveMemory(Setup& setup, std::vector<Mapping>& memory) {
  for (size_t rank = 0; rank < kRanks; ++rank) {
    TransferTarget target;
    target.plan = &setup.plans[rank];
    target.slab.segments.push_back(memory[rank].span().first(setup.plans[rank].slab_bytes));
    setup.targets.push_back(target);
  }
}

void WriteSource(const std::string& path, uint64_t bytes) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  std::vector<uint64_t> block((4 << 20) / 8);
  uint64_t state = 1;
  for (uint64_t done = 0; done < bytes;) {
    for (uint64_t& word : block) word = state = state * 6364136223846793005U + 1442695040888963407U;
    const size_t n = std::min<uint64_t>(bytes - done, block.size() * 8);
    if (::write(fd.get(), block.data(), n) != static_cast<ssize_t>(n)) Die("writing " + path);
    done += n;
  }
}

// Reads the file anew, so that the page cache holds it in single pages.
void CacheInSmallPages(int fd) {
  std::vector<std::byte> block(1 << 20);
  if (::fsync(fd) != 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0 ||
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) != 0) {
    Die("dropping the source from the page cache");
  }
  while (::read(fd, block.data(), block.size()) > 0) {
  }
}

void ReadFloor(int fd, uint64_t bytes, std::byte* out, unsigned threads) {
  constexpr uint64_t kStep = 16 << 20;
  std::atomic<uint64_t> next = 0;
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < threads; ++i) {
    readers.emplace_back([&] {
      for (uint64_t at = next.fetch_add(kStep); at < bytes; at = next.fetch_add(kStep)) {
        const size_t n = std::min(kStep, bytes - at);
        if (!PreadFull(fd, at, {out + at, n}, "source").ok()) Die("reading the source");
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
}

struct Variant {
  std::string name;
  Setup* setup = nullptr;
  bool digests = false;
  IoMode io_mode = IoMode::kAuto;
  std::vector<double> ratios;
  double best = 1e9;
};

void RunVariant(Variant& variant, unsigned threads) {
  TransferProgress progress(kRanks);
  TransferOptions options;
  options.digests = variant.digests;
  options.io_mode = variant.io_mode;
  options.threads = threads;
  const auto result = RunTransfer(variant.setup->index, variant.setup->targets, options, progress);
  if (!result.ok()) Die(std::string(result.status().message()));
}

int Main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const auto threads = static_cast<unsigned>(argc > 3 ? std::atoi(argv[3]) : 2);
  uint64_t bytes = 4096 + 8;
  for (const uint64_t rows : TensorRows()) bytes += rows * kRowBytes;
  const std::string path = folder + "/transfer_bench." + std::to_string(::getpid());
  WriteSource(path, bytes);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (argc > 5 && argv[5] == std::string_view("small")) CacheInSmallPages(fd.get());
  const Mapping floor_memory = FaultedMemfd(bytes);

  // One set of slabs, large enough for every shape, shared by all of them.
  Setup rows = MakeSetup(path, bytes, Shape::kRows);
  Setup columns = MakeSetup(path, bytes, Shape::kColumns);
  Setup cast = MakeSetup(path, bytes, Shape::kCast);
  Setup replicated = MakeSetup(path, bytes, Shape::kReplicated);
  std::vector<Mapping> memory;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    memory.push_back(FaultedMemfd(replicated.plans[rank].slab_bytes));
  }
  for (Setup* setup : {&rows, &columns, &cast, &replicated}) GiveMemory(*setup, memory);

  constexpr IoMode kAuto = IoMode::kAuto, kMap = IoMode::kMap, kBuffer = IoMode::kBuffer;
  std::vector<Variant> variants = {
      {"rows", &rows, false, kAuto, {}},
      {"rows, not mapped", &rows, false, kBuffer, {}},
      {"rows, mapped", &rows, false, kMap, {}},
      {"rows, digests", &rows, true, kAuto, {}},
      {"rows, digests, mapped", &rows, true, kMap, {}},
      {"rows, digests, not mapped", &rows, true, kBuffer, {}},
      {"columns", &columns, false, kAuto, {}},
      {"columns, digests", &columns, true, kAuto, {}},
      {"columns, not mapped", &columns, false, kBuffer, {}},
      {"bf16 to f32", &cast, false, kAuto, {}},
      {"bf16 to f32, digests", &cast, true, kAuto, {}},
      {"replicated to 4", &replicated, false, kAuto, {}},
      {"replicated to 4, digests", &replicated, true, kAuto, {}},
  };
  if (argc > 4) {
    std::erase_if(variants,
                  [&](const Variant& v) { return v.name.find(argv[4]) == std::string::npos; });
  }
  const auto floor = [&] {
    return Seconds([&] { ReadFloor(fd.get(), bytes, floor_memory.data(), threads); });
  };
  double before = floor();
  double best_floor = before;
  for (int round = 0; round <= rounds; ++round) {
    for (Variant& variant : variants) {
      const double took = Seconds([&] { RunVariant(variant, threads); });
      const double after = floor();
      best_floor = std::min(best_floor, after);
      if (round > 0) variant.ratios.push_back(took / ((before + after) / 2));  // 0 warms up
      variant.best = std::min(variant.best, took);
      before = after;
    }
  }
  fmt::print("{:.3f} GB, {} threads, floor at best {:.3f} s\n", static_cast<double>(bytes) / 1e9,
             threads, best_floor);
  for (const Variant& variant : variants) {
    fmt::print("{:<28} {:.2f} x the floor's time (median), best {:.3f} s\n", variant.name,
               Median(variant.ratios), variant.best);
  }
  ::unlink(path.c_str());
  return 0;
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) { return ckptd::Main(argc, argv); }
