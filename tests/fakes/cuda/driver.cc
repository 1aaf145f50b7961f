#include "tests/fakes/cuda/driver.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "tests/fakes/cuda/trace.h"

namespace ckptd::fake_cuda {
namespace {

std::string UuidText(const Uuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", unsigned{uuid[i]});
    text += (i == 4 || i == 6 || i == 8 || i == 10) ? std::string("-") + digits : digits;
  }
  return text;
}

// Which of `gpus` one entry of CUDA_VISIBLE_DEVICES names: an ordinal, or the start of a UUID.
std::size_t Selected(const std::string& entry, const std::vector<Gpu>& gpus) {
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    const bool by_uuid =
        entry.rfind("GPU-", 0) == 0 && UuidText(gpus[gpu].uuid).rfind(entry, 0) == 0;
    if (by_uuid || entry == std::to_string(gpu)) return gpu;
  }
  return gpus.size();
}

// CUDA C++ Programming Guide, environment variables: devices behind an invalid entry are
// not visible.
std::vector<std::size_t> VisibleGpus(const std::vector<Gpu>& gpus) {
  std::vector<std::size_t> visible;
  const char* selection = std::getenv("CUDA_VISIBLE_DEVICES");
  if (selection == nullptr) {
    for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) visible.push_back(gpu);
    return visible;
  }
  std::istringstream entries(selection);
  std::string entry;
  while (std::getline(entries, entry, ',')) {
    const std::size_t gpu = Selected(entry, gpus);
    if (gpu == gpus.size() || std::count(visible.begin(), visible.end(), gpu) != 0) break;
    visible.push_back(gpu);
  }
  return visible;
}

std::atomic<Driver*> instance{nullptr};  // null: nothing was ever called

// At the process's end: what it still holds is given back by the kernel, and counted here.
__attribute__((destructor)) void Summarise() {
  if (instance == nullptr || instance.load()->pid != ::getpid()) return;
  Driver& d = *instance;
  MutexLock lock(d.mutex);
  TraceEvent("atexit", {{"leaks", d.handles.size() + d.space.mappings.size() +
                                      d.space.blocks.size() + d.space.reservations.size()},
                        {"handles", d.handles.size()},
                        {"mappings", d.space.mappings.size()},
                        {"blocks", d.space.blocks.size()},
                        {"reservations", d.space.reservations.size()}});
}

}  // namespace

Driver::Driver() : store(config), streams(mutex) {
  if (auto loaded = LoadConfig(config_error)) config = *loaded;
  if (!config_error.empty()) std::fprintf(stderr, "fake libcuda: %s\n", config_error.c_str());
  OpenTrace(config.trace);
  fault_calls.resize(config.faults.size());
  std::error_code ignored;
  if (store.shared()) std::filesystem::create_directories(config.state_dir, ignored);
  const std::vector<std::size_t> visible = VisibleGpus(config.gpus);
  devices.resize(visible.size());
  for (std::size_t i = 0; i < visible.size(); ++i) {
    devices[i].gpu = visible[i];
    devices[i].context.device = static_cast<int>(i);
  }
}

Driver& driver() {
  static Driver* const made = instance = new Driver;
  return *made;
}

ThreadContexts& ContextStack() {
  thread_local ThreadContexts stack;
  return stack;
}

bool& InHostFunction() {
  thread_local bool inside = false;
  return inside;
}

Device* Driver::Find(CUdevice device) {
  const bool known = device >= 0 && static_cast<std::size_t>(device) < devices.size();
  return known ? &devices[static_cast<std::size_t>(device)] : nullptr;
}

Context* Driver::Find(CUcontext context) {
  for (Device& device : devices) {
    if (reinterpret_cast<CUcontext>(&device.context) == context) return &device.context;
  }
  return nullptr;
}

int Driver::DeviceOf(std::size_t gpu) const {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].gpu == gpu) return static_cast<int>(i);
  }
  return -1;
}

StreamPtr Driver::Find(CUstream stream, const Context& context) const {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return context.null_stream;
  const auto found = stream_handles.find(stream);
  return found == stream_handles.end() ? nullptr : found->second;
}

CUresult Driver::Break(CUresult error) {
  if (sticky == CUDA_SUCCESS) sticky = error;
  return sticky;
}

void Driver::Destroy(Context& context) {
  streams.Drop(&context);
  context.null_stream = nullptr;
  context.peers.clear();
  std::erase_if(stream_handles, [&](const auto& s) { return s.second->context == &context; });
  std::erase_if(events, [&](const auto& e) { return e.second->context == &context; });
  std::erase_if(modules, [&](const auto& m) { return m.second->context == &context; });
  // Memory of cuMemCreate is no context's (note at cuCtxDestroy): it stays.
  for (auto block = space.blocks.begin(); block != space.blocks.end();) {
    const auto& [address, what] = *block;
    const bool gone = what.device == context.device;
    if (gone && what.memory != nullptr) space.Retire(address, what.memory->name.bytes);
    if (gone && what.kind == BlockKind::kPinned) space.Retire(address, what.bytes);
    block = gone ? space.blocks.erase(block) : std::next(block);
  }
}

}  // namespace ckptd::fake_cuda
