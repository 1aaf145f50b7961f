#include "server/daemon/memory_tier.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/arena_default.h"
#include "server/daemon/environment.h"
#include "server/daemon/network.h"
#include "server/daemon/run_directory.h"
#include "server/daemon/sizes.h"
#include "server/daemon/slab_dir.h"
#include "server/memory/host/available_memory.h"
#include "server/memory/host/host_memory.h"
#include "server/memory/host/numa.h"
#ifdef CKPTD_WITH_CUDA
#include "server/memory/cuda/cuda_memory.h"
#include "server/memory/cuda/kernels/image.h"
#endif
#ifdef CKPTD_WITH_NCCL
#include "server/comm/nccl/nccl_comms.h"
#endif

namespace ckptd {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string Gigabytes(uint64_t bytes) {
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

// The node for memory that trainers map, or from which GPUs are filled.
absl::StatusOr<std::optional<unsigned>> NumaNodeFor(const Config& config) {
  const NumaPlace place = {config.rank % config.local_size, config.local_size};
  CKPTD_ASSIGN_OR_RETURN(const std::optional<unsigned> node,
                         ChooseNumaNode(config.numa, ReadNumaNodes(), AllowedCores(), place));
  if (!node.has_value()) return std::nullopt;
  const absl::Status works = CheckPreferNode(*node);
  if (works.ok()) return node;
  Log(LogLevel::kWarn, "{}", MessageOf(works));
  return std::nullopt;
}

// One file for all jobs of this user on this host, whatever their run directories.
std::string ClaimsPath(const Config& config) {
  const std::string shared = fmt::format("/dev/shm/ckptd-memory-{}", ::geteuid());
  if (MakeRunDirectory(shared, std::nullopt).ok()) return shared + "/claims";
  Log(LogLevel::kInfo,
      "memory: {} is not to be had as a folder of this user alone: daemons of other jobs do not see "
      "what this one is allocating",
      shared);
  // Each host has its own file, even if hosts share the folder.
  return fmt::format("{}/memory-{}.claims", PathsOf(config).directory, BootId());
}

constexpr char kOnHost[] = "shards live in host memory";

absl::Status NoNcclOnHost(const std::string& reason) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoNccl,
                   fmt::format("using --comm nccl: {} ({}), and NCCL carries bytes between GPUs; "
                               "use auto",
                               kOnHost, reason));
}

AutoArena MakeAutoArena(const Config& config) {
  AutoArena automatic;
  automatic.idle = std::chrono::nanoseconds(static_cast<int64_t>(config.arena_idle * 1e9));
  automatic.remember = [config](uint64_t bytes) {
    const absl::Status written = RememberLoaded(config, bytes);
    if (!written.ok()) {
      Log(LogLevel::kInfo, "memory: the size of this job's shards could not be stored: {}",
          MessageOf(written));
    }
  };
  return automatic;
}

// Where segments lie, and how much they may take of the `available` bytes.
absl::Status SetBudget(const Config& config, uint64_t available, uint64_t kept,
                       HostMemoryOptions& options) {
  uint64_t part = available / config.local_size;
  CKPTD_ASSIGN_OR_RETURN(options.folder, MakeSlabFolder(config));
  if (!options.folder.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const uint64_t room, SlabFolderBytes(config, options.folder, kept));
    part = std::min(part, room);
  }
  CKPTD_ASSIGN_OR_RETURN(options.budget_bytes, ParseBudget(config.memory_budget, part, kept));
  return absl::OkStatus();
}

absl::StatusOr<MemoryTier> MakeHostTier(const Config& config, std::string reason, uint64_t kept) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemory());
  CKPTD_ASSIGN_OR_RETURN(const uint64_t behind, ParseShare(config.host_tier, available));
  if (behind > 0) Log(LogLevel::kWarn, "--host-tier is not used: shards live in host memory");
  HostMemoryOptions options;
  CKPTD_RETURN_IF_ERROR(SetBudget(config, available, kept, options));
  CKPTD_ASSIGN_OR_RETURN(const ArenaSize arena,
                         ChooseArena(config, available, options.budget_bytes));
  options.arena_target_bytes = arena.bytes;
  options.arena_why = arena.why;
  if (arena.automatic) options.automatic = MakeAutoArena(config);
  if (options.arena_target_bytes > options.budget_bytes) {
    Log(LogLevel::kWarn, "--arena {} is more than the memory budget: it is filled up to {:.1f} GB",
        config.arena, static_cast<double>(options.budget_bytes) / 1e9);
  }
  CKPTD_ASSIGN_OR_RETURN(options.segment_bytes, ParseBytes(config.segment_bytes));
  options.huge_pages = config.huge_pages == "auto";
  CKPTD_ASSIGN_OR_RETURN(options.numa_node, NumaNodeFor(config));
  options.filled_by_peers = config.world_size > 1;
  options.local_daemons = config.local_size;
  options.claims_path = ClaimsPath(config);
  options.claims_holder = fmt::format("rank {} of job {}", config.rank, config.job);
  // Nobody has asked for an automatic arena, so its notes are no warnings.
  const LogLevel level = arena.automatic ? LogLevel::kInfo : LogLevel::kWarn;
  options.note = [level](const std::string& line) { Log(level, "memory: {}", line); };
  if (arena.bytes > 0) {
    Log(LogLevel::kInfo, "memory: {:.1f} MB are being faulted in, in the background: {}",
        static_cast<double>(arena.bytes) / 1e6, arena.why);
  }
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory,
                         HostMemory::Create(std::move(options)));
  MemoryTier tier;
  tier.segment_fd = [memory = memory.get()](uint64_t id) { return memory->OriginalFd(id); };
  tier.no_comms = kOnHost;
  if (config.comm == "nccl" && config.world_size > 1) return NoNcclOnHost(reason);
  tier.reason = std::move(reason);
  tier.ready = {memory.get()};
  tier.backend = std::move(memory);
  return tier;
}

#ifdef CKPTD_WITH_CUDA

// Host memory behind the GPU's. Null if none is wanted.
absl::StatusOr<std::unique_ptr<HostMemory>> MakeHostTier(const Config& config) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemory());
  HostMemoryOptions options;
  CKPTD_ASSIGN_OR_RETURN(options.budget_bytes,
                         ParseShare(config.host_tier, available / config.local_size));
  if (options.budget_bytes == 0) return nullptr;
  CKPTD_ASSIGN_OR_RETURN(options.segment_bytes, ParseBytes(config.segment_bytes));
  options.huge_pages = config.huge_pages == "auto";
  CKPTD_ASSIGN_OR_RETURN(options.numa_node, NumaNodeFor(config));
  options.claims_path = ClaimsPath(config);
  options.claims_holder = fmt::format("rank {} of job {}", config.rank, config.job);
  options.note = [](const std::string& line) { Log(LogLevel::kWarn, "host tier: {}", line); };
  return HostMemory::Create(std::move(options));
}

// The host's daemons use its GPUs in turn.
absl::StatusOr<GpuInfo> ChooseGpu(const CudaDriver& driver, const Config& config) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<GpuInfo> gpus, ListGpus(driver));
  if (config.device == "auto") return gpus[config.rank % config.local_size % gpus.size()];
  size_t index = 0;
  const char* const end = config.device.data() + config.device.size();
  const auto parsed = std::from_chars(config.device.data(), end, index);
  if (parsed.ec != std::errc() || parsed.ptr != end) return FindGpu(driver, config.device);
  if (index < gpus.size()) return gpus[index];
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDevice,
                   fmt::format("choosing --device {}: this process sees {} GPUs, counted from 0",
                               index, gpus.size()));
}

// How many daemons share the memory of one GPU. If only one GPU is visible, schedulers have most
// likely given each daemon its own (one per task, slices of MIG). If it is shared all the same,
// its free memory limits each daemon.
uint64_t SharersOf(const Config& config, size_t gpus) {
  return gpus == 1 ? 1 : (config.local_size + gpus - 1) / gpus;
}

#ifdef CKPTD_WITH_NCCL
auto OpenNccl(const Config& config) {
  NcclSearch search;
  search.path = config.nccl_library;
  if (const auto active = ReadEnvironment("VIRTUAL_ENV")) {
    search.python_environments.push_back(*active);
  }
  return NcclLibrary::Open(search);
}

absl::StatusOr<std::string> DescribeNccl(const Config& config) {
  const auto library = OpenNccl(config);
  if (library.ok()) return fmt::format("{} ({})", (*library)->VersionText(), (*library)->path());
  if (config.comm == "nccl") return library.status();
  return "none: " + MessageOf(library.status());
}

absl::Status OpenComms(const Config& config, const CudaMemory& memory, MemoryTier& tier) {
  auto library = OpenNccl(config);
  if (!library.ok()) {
    tier.no_comms = MessageOf(library.status());
    return config.comm == "nccl" ? library.status() : absl::OkStatus();
  }
  Log(LogLevel::kInfo, "NCCL {} ({})", (*library)->VersionText(), (*library)->path());
  tier.comms =
      std::make_unique<NcclComms>(*std::move(library), [&memory] { return memory.Device(); });
  return absl::OkStatus();
}
#else
constexpr char kNoHeader[] = "this ckptd was built without NCCL's header";

absl::Status NoNcclBuilt() {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoNccl,
                   fmt::format("using --comm nccl: {}; build it with CKPTD_NCCL=ON, or use auto",
                               kNoHeader));
}

absl::StatusOr<std::string> DescribeNccl(const Config& config) {
  if (config.comm == "nccl") return NoNcclBuilt();
  return std::string("none: ") + kNoHeader;
}

absl::Status OpenComms(const Config& config, const CudaMemory&, MemoryTier& tier) {
  tier.no_comms = kNoHeader;
  return config.comm == "nccl" ? NoNcclBuilt() : absl::OkStatus();
}
#endif

absl::StatusOr<MemoryTier> MakeCudaTier(const CudaDriver& driver, const Config& config,
                                        std::string reason, uint64_t kept) {
  CKPTD_ASSIGN_OR_RETURN(GpuInfo gpu, ChooseGpu(driver, config));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<GpuInfo> gpus, ListGpus(driver));
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<CudaDevice> device,
                         CudaDevice::Open(driver, std::move(gpu)));
  CKPTD_ASSIGN_OR_RETURN(const uint64_t free, device->FreeBytes());
  const uint64_t sharers = SharersOf(config, gpus.size());
  CudaMemoryOptions options;
  CKPTD_ASSIGN_OR_RETURN(options.budget_bytes, ParseBudget(config.memory_budget, free / sharers, kept));
  CKPTD_ASSIGN_OR_RETURN(options.staging_bytes, ParseBytes(config.staging));
  options.kernels = kernels::KernelImage();
  options.keep_engine = config.idle == "keep";
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<CudaMemory> memory,
                         CudaMemory::Create(std::move(device), options));
  MemoryTier tier;
  tier.segment_fd = [memory = memory.get()](uint64_t id) { return memory->SegmentFd(id); };
  tier.import = [memory = memory.get()](const std::string& uuid, const UniqueFd& fd,
                                        uint64_t bytes) {
    return memory->ImportPeer(uuid, fd, bytes);
  };
  tier.reason = std::move(reason);
  if (config.world_size == 1) {
    tier.no_comms = "a group of one needs none";
  } else if (config.comm == "host") {
    tier.no_comms = "--comm is host";
  } else {
    CKPTD_RETURN_IF_ERROR(OpenComms(config, *memory, tier));
  }
  if (config.world_size > 1) {
    tier.reason += tier.comms == nullptr ? "; without NCCL: " + tier.no_comms
                                         : "; between GPUs " + tier.comms->version();
  }
  tier.backend = std::move(memory);
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> behind, MakeHostTier(config));
  if (behind != nullptr) tier.ready = {behind.get()};
  tier.host_tier = std::move(behind);
  return tier;
}

// The driver, if it has a GPU.
absl::StatusOr<const CudaDriver*> FindDriver() {
  CKPTD_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  CKPTD_RETURN_IF_ERROR(ListGpus(*driver).status());
  return driver;
}

absl::Status AddGpus(const Config& config, bool chosen, Pairs& facts) {
  const absl::StatusOr<const CudaDriver*> driver = FindDriver();
  if (!driver.ok()) return absl::OkStatus();  // the reason of the tier tells why
  if (chosen) {
    CKPTD_ASSIGN_OR_RETURN(const GpuInfo own, ChooseGpu(**driver, config));
    facts.emplace_back("device", own.uuid);
  }
  CKPTD_ASSIGN_OR_RETURN(const std::vector<GpuInfo> gpus, ListGpus(**driver));
  for (size_t i = 0; i < gpus.size(); ++i) {
    facts.emplace_back(fmt::format("gpu-{}", i),
                       fmt::format("{}, {}, {}", gpus[i].name, gpus[i].uuid,
                                   Gigabytes(gpus[i].total_bytes)));
  }
  return absl::OkStatus();
}

#endif

struct Choice {
  bool cuda = false;
  std::string reason;
};

#ifdef CKPTD_WITH_CUDA
// Device memory that ends with the daemon (CUDA IPC) is only for clients that ask for it, so
// `auto` does not choose it.
absl::StatusOr<Choice> ChooseOnGpu(const CudaDriver& driver, const Config& config, bool asked) {
  CKPTD_ASSIGN_OR_RETURN(const GpuInfo gpu, ChooseGpu(driver, config));
  if (gpu.no_descriptors.empty()) return Choice{true, asked ? "asked for" : "a GPU is there"};
  const std::string why = fmt::format("{} cannot lend memory by descriptors ({})", gpu.uuid,
                                      gpu.no_descriptors);
  if (asked) {
    return Choice{true, fmt::format("asked for; but {}: it serves only loads that ask for "
                                    "--handle cuda_ipc", why)};
  }
  return Choice{false, fmt::format("a GPU is there, but {}; --memory cuda serves loads that ask "
                                   "for --handle cuda_ipc", why)};
}
#endif

absl::StatusOr<Choice> ChooseTier(const Config& config) {
  if (config.memory == "host") return Choice{false, "asked for"};
#ifdef CKPTD_WITH_CUDA
  const absl::StatusOr<const CudaDriver*> driver = FindDriver();
  const bool asked = config.memory == "cuda";
  if (driver.ok()) return ChooseOnGpu(**driver, config, asked);
  if (asked) {
    return WithContext(driver.status(), "using --memory cuda (--memory host needs no GPU)");
  }
  return Choice{false, "no GPU is visible: " + MessageOf(driver.status())};
#else
  if (config.memory == "cuda") {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDevice,
                     "using --memory cuda: this ckptd was built without CUDA's headers; build it "
                     "with CKPTD_CUDA=ON, or use host");
  }
  return Choice{false, "built without CUDA"};
#endif
}

}  // namespace

absl::StatusOr<MemoryTier> MakeMemoryTier(const Config& config, KeptBytes kept) {
  CKPTD_ASSIGN_OR_RETURN(Choice choice, ChooseTier(config));
#ifdef CKPTD_WITH_CUDA
  if (choice.cuda) {
    CKPTD_RETURN_IF_ERROR(RefuseSlabDirOnGpu(config));
    CKPTD_ASSIGN_OR_RETURN(const CudaDriver* const driver, FindDriver());
    return MakeCudaTier(*driver, config, std::move(choice.reason), kept.device);
  }
#endif
  return MakeHostTier(config, std::move(choice.reason), kept.host);
}

absl::Status HasRoomForTables(uint64_t bytes) {
  constexpr uint64_t kReserve = uint64_t{32} << 20;
  CKPTD_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemory());
  if (available >= kReserve && available - kReserve >= bytes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                   fmt::format("making tables of its tensors may take {} bytes of memory, and this "
                               "machine or its container has {} left; free some (ckptctl trim, "
                               "ckptctl unload) or raise the limit",
                               bytes, available),
                   {{"asked_bytes", std::to_string(bytes)},
                    {"free_bytes", std::to_string(available)}});
}

absl::StatusOr<Pairs> DescribeMachine(const Config& config) {
  CKPTD_ASSIGN_OR_RETURN(const Choice choice, ChooseTier(config));
  if (config.comm == "nccl" && !choice.cuda) return NoNcclOnHost(choice.reason);
  CKPTD_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemory());
  Pairs facts = {{"memory", choice.cuda ? "cuda" : "host"}, {"memory-reason", choice.reason}};
#ifdef CKPTD_WITH_CUDA
  CKPTD_RETURN_IF_ERROR(AddGpus(config, choice.cuda, facts));
  CKPTD_ASSIGN_OR_RETURN(std::string nccl, DescribeNccl(config));
  facts.emplace_back("nccl", std::move(nccl));
#else
  facts.emplace_back("nccl", "none: built without CUDA");
#endif
  facts.emplace_back("host-memory", Gigabytes(available) + " available");
  if (!choice.cuda) {
    CKPTD_ASSIGN_OR_RETURN(const uint64_t budget,
                           ParseShare(config.memory_budget, available / config.local_size));
    CKPTD_ASSIGN_OR_RETURN(const ArenaSize arena, ChooseArena(config, available, budget));
    facts.emplace_back("arena", fmt::format("{}: {}", Gigabytes(arena.bytes), arena.why));
  }
  facts.emplace_back("numa-nodes", fmt::format("{}", ReadNumaNodes().size()));
  facts.emplace_back("cores", fmt::format("{}", AllowedCores().size()));
  return facts;
}

}  // namespace ckptd
