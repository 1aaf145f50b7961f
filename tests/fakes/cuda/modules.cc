// Kernels: a launch runs the kernel's host twin, found by name.
//   extern "C" void NAME_twin(const void* params, unsigned grid, unsigned block);
//   extern "C" const std::size_t NAME_twin_bytes;   // of the parameter struct
// Every kernel has one parameter, a struct by value. Without NAME_twin_bytes the
// fake cannot keep the struct for later: the launch then runs within the call.
#include <dlfcn.h>

#include <cstring>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

constexpr unsigned kFatbinMagic = 0xba55ed50;   // a fat binary
constexpr unsigned kWrapperMagic = 0x466243b1;  // the struct that points at one
constexpr unsigned kElfMagic = 0x464c457f;      // a cubin
constexpr std::size_t kMaxParamBytes = 4096;    // CUDA C++ Programming Guide, function parameters
constexpr int kMaxThreads = 1024;
constexpr unsigned kMaxShared = 48 * 1024;

CUresult Load(Call& call, const Context& context, const void* image, CUmodule* out) {
  if (image == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  const auto* text = static_cast<const char*>(image);
  const bool binary = magic == kFatbinMagic || magic == kWrapperMagic || magic == kElfMagic;
  // PTX starts with comments or with its first directive.
  const bool ptx = std::strncmp(text, "//", 2) == 0 || std::strncmp(text, ".ver", 4) == 0;
  if (!binary && !ptx) return CUDA_ERROR_INVALID_IMAGE;
  auto module = std::make_unique<Module>();
  module->context = &context;
  if (ptx) module->ptx = text;
  *out = reinterpret_cast<CUmodule>(module.get());
  driver().modules[*out] = std::move(module);
  call.Note("module", *out);
  return CUDA_SUCCESS;
}

// A symbol of the program or of one of the configuration's libraries; null: none has it.
void* Symbol(const std::string& name) {
  if (void* found = ::dlsym(RTLD_DEFAULT, name.c_str())) return found;
  for (const std::string& path : driver().config.twins) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      TraceViolation("a library of twins cannot be opened");
      continue;
    }
    if (void* found = ::dlsym(library, name.c_str())) return found;
  }
  return nullptr;
}

CUresult GetFunction(Call& call, CUmodule module, const char* name, CUfunction* out) {
  Driver& d = driver();
  const auto found = d.modules.find(module);
  if (name == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (found == d.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
  const std::string& ptx = found->second->ptx;
  auto function = std::make_unique<Function>();
  function->name = name;
  function->twin = reinterpret_cast<decltype(function->twin)>(Symbol(function->name + "_twin"));
  // cuModuleGetFunction: "If no function of that name exists, [...] CUDA_ERROR_NOT_FOUND".
  // Binary images may be compressed: there a missing twin is all that can be seen.
  if (!ptx.empty() && ptx.find(function->name) == std::string::npos) return CUDA_ERROR_NOT_FOUND;
  if (function->twin == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (const void* bytes = Symbol(function->name + "_twin_bytes")) {
    function->param_bytes = *static_cast<const std::size_t*>(bytes);
  }
  *out = reinterpret_cast<CUfunction>(function.get());
  d.functions[*out] = std::move(function);
  call.Note("function", *out);
  return CUDA_SUCCESS;
}

struct Launch {
  CUfunction function;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  CUstream stream;
  void** params;
  void** extra;
};

// Attributes MAX_GRID_DIM_*, MAX_BLOCK_DIM_*, MAX_THREADS_PER_BLOCK, and shared memory that
// nobody raised: beyond them a launch is CUDA_ERROR_INVALID_VALUE.
bool WithinLimits(const Launch& launch) {
  constexpr unsigned kGrid[3] = {0x7fffffff, 65535, 65535};
  constexpr unsigned kBlock[3] = {kMaxThreads, kMaxThreads, 64};
  std::uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (launch.grid[i] == 0 || launch.grid[i] > kGrid[i]) return false;
    if (launch.block[i] == 0 || launch.block[i] > kBlock[i]) return false;
    threads *= launch.block[i];
  }
  return threads <= kMaxThreads && launch.shared <= kMaxShared;
}

// Twins know one dimension, and parameters come by kernelParams.
bool Imitated(const Launch& launch) {
  return launch.grid[1] == 1 && launch.grid[2] == 1 && launch.block[1] == 1 &&
         launch.block[2] == 1 && launch.extra == nullptr;
}

// Whatever in the struct looks like an address may be used by the kernel.
std::vector<Range> Touched(const std::vector<unsigned char>& params) {
  std::vector<Range> touched;
  for (std::size_t at = 0; at + sizeof(Address) <= params.size(); at += sizeof(Address)) {
    Address address = 0;
    std::memcpy(&address, params.data() + at, sizeof address);
    touched.push_back({address, 1});
  }
  return touched;
}

CUresult Start(Context& context, const Launch& launch) {
  Driver& d = driver();
  const auto found = d.functions.find(launch.function);
  const StreamPtr stream = d.Find(launch.stream, context);
  if (found == d.functions.end() || stream == nullptr || stream->context != &context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!WithinLimits(launch)) return CUDA_ERROR_INVALID_VALUE;
  if (!Imitated(launch)) return CUDA_ERROR_NOT_SUPPORTED;
  if (launch.params == nullptr || launch.params[0] == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Function& function = *found->second;
  if (function.param_bytes > kMaxParamBytes) return CUDA_ERROR_INVALID_VALUE;
  // "The number of kernel parameters [...] need not be specified": they are copied by the call.
  const auto* params = static_cast<const unsigned char*>(launch.params[0]);
  const std::vector<unsigned char> kept(params, params + function.param_bytes);
  Work work;
  work.touches = Touched(kept);
  work.run = [twin = function.twin, kept, params, grid = launch.grid[0], block = launch.block[0]] {
    twin(kept.empty() ? params : kept.data(), grid, block);
  };
  const CUresult queued = d.streams.Submit(stream, std::move(work));
  const bool now = queued == CUDA_SUCCESS && kept.empty();
  return now ? d.streams.Finish(d.streams.End(stream)) : queued;
}

CUresult LoadCall(const char* function, CUmodule* module, const void* image) {
  return Call(function, {}).RunInContext([&](Call& call, Context& context) {
    return Load(call, context, image, module);
  });
}

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  return LoadCall("cuModuleLoadData", module, image);
}

// Options are for the compiler, which there is none of.
CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*,
                                    void**) {
  return LoadCall("cuModuleLoadDataEx", module, image);
}

CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  return Call("cuModuleUnload", {{"module", module}}).RunInContext([&](Call&, Context&) {
    return driver().modules.erase(module) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return Call("cuModuleGetFunction", {{"module", module}}).RunInContext([&](Call& call, Context&) {
    return GetFunction(call, module, name, function);
  });
}

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                    CUfunction function) {
  return Call("cuFuncGetAttribute", {{"attribute", attribute}}).Run([&](Call&) -> CUresult {
    if (value == nullptr || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (driver().functions.count(function) == 0) return CUDA_ERROR_INVALID_HANDLE;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? kMaxThreads : 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function,
                                                  CUoccupancyB2DSize, std::size_t, int limit) {
  return Call("cuOccupancyMaxPotentialBlockSize", {{"limit", limit}})
      .RunInContext([&](Call&, Context&) -> CUresult {
        if (grid == nullptr || block == nullptr || limit < 0) return CUDA_ERROR_INVALID_VALUE;
        if (driver().functions.count(function) == 0) return CUDA_ERROR_INVALID_HANDLE;
        *block = limit == 0 || limit > kMaxThreads ? kMaxThreads : limit;
        *grid = 8;
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared, CUstream stream, void** params,
                                void** extra) {
  const Launch launch = {
      function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, params,
      extra};
  const Fields fields = {
      {"function", function}, {"grid", grid_x}, {"block", block_x}, {"stream", stream}};
  return Call("cuLaunchKernel", fields).RunInContext([&](Call&, Context& context) {
    return Start(context, launch);
  });
}

}  // extern "C"
