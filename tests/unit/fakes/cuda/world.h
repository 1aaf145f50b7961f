// Processes that share fake GPUs, for the tests of the fake. The driver's state
// is a process's: each body runs in a child of its own, and the test itself
// never calls the driver.
#ifndef CKPTD_TESTS_UNIT_FAKES_CUDA_WORLD_H_
#define CKPTD_TESTS_UNIT_FAKES_CUDA_WORLD_H_

#include <cuda.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "tests/testing/temp_folder.h"

namespace ckptd::fake_cuda {

constexpr std::size_t kUnit = std::size_t{2} << 20;
constexpr int kPatienceMs = 30'000;

// A socket pair between two bodies: bytes and descriptors, each wait with a deadline.
class Channel {
 public:
  Channel() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_), 0); }
  ~Channel() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // `end` is 0 or 1: who speaks. With a descriptor, if it is not negative.
  void Send(int end, const void* data, std::size_t bytes, int fd = -1) const {
    iovec part{const_cast<void*>(data), bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    EXPECT_EQ(::sendmsg(ends_[end], &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  // What the other end sent; the descriptor that came with it, or -1.
  int Receive(int end, void* data, std::size_t bytes) const {
    pollfd ready{ends_[end], POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, kPatienceMs), 1) << "the other process said nothing";
    iovec part{data, bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    EXPECT_EQ(::recvmsg(ends_[end], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC),
              static_cast<ssize_t>(bytes));
    int fd = -1;
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    }
    return fd;
  }
  void Say(int end) const { Send(end, "!", 1); }
  void Hear(int end) const {
    char byte = 0;
    Receive(end, &byte, 1);
  }

 private:
  int ends_[2] = {-1, -1};
};

// A child that was started by a World; killed if the test forgets it.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ > 0) Kill();
  }
  pid_t pid() const { return pid_; }
  // Its wait status.
  int Wait() {
    const pid_t pid = std::exchange(pid_, -1);
    int status = -1;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return status;
  }
  void Kill() {
    ::kill(pid_, SIGKILL);
    Wait();
  }

 private:
  pid_t pid_;
};

class World {
 public:
  explicit World(const std::string& config = "") { Configure(config); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // For children that start from now on.
  void Configure(const std::string& lines) const {
    std::ofstream(folder_ / "config") << lines << "\nstate_dir = state\ntrace = trace\n";
  }
  Child Start(const std::function<void()>& body, const std::string& role = "") const {
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setenv("CKPTD_FAKE_CUDA", (folder_ / "config").c_str(), 1);
      ::setenv("CKPTD_FAKE_CUDA_ROLE", role.c_str(), 1);
      body();
      std::exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_GT(pid, 0);
    return Child(pid);
  }
  // Runs a body to its end; what it expects must hold.
  void Run(const std::function<void()>& body, const std::string& role = "") const {
    EXPECT_EQ(Start(body, role).Wait(), 0) << "see above what failed in the child";
  }
  // How many lines of the trace hold a text.
  int Traced(const std::string& text) const {
    std::ifstream trace(folder_ / "trace");
    int count = 0;
    for (std::string line; std::getline(trace, line);) count += line.find(text) != line.npos;
    return count;
  }
  const std::string& folder() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

// What most bodies begin with.
inline void UseDevice(int ordinal = 0) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGet(&device, ordinal), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

inline CUmemAllocationProp Shareable(int device = 0) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

inline CUmemAccessDesc Access(CUmemAccess_flags flags, int device = 0) {
  CUmemAccessDesc desc = {};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.location.id = device;
  desc.flags = flags;
  return desc;
}

inline CUmemGenericAllocationHandle MakeMemory(std::size_t bytes) {
  const CUmemAllocationProp prop = Shareable();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, bytes, &prop, 0), CUDA_SUCCESS);
  return handle;
}

// A fresh reservation with the memory in it.
inline CUdeviceptr MapMemory(CUmemGenericAllocationHandle handle, std::size_t bytes,
                             CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  const CUmemAccessDesc access = Access(flags);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemSetAccess(address, bytes, &access, 1), CUDA_SUCCESS);
  return address;
}

inline int ExportMemory(CUmemGenericAllocationHandle handle) {
  int fd = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  return fd;
}

inline CUmemGenericAllocationHandle ImportMemory(int fd) {
  CUmemGenericAllocationHandle handle = 0;
  void* shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  EXPECT_EQ(
      cuMemImportFromShareableHandle(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      CUDA_SUCCESS);
  return handle;
}

inline std::size_t FreeBytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  return free;
}

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_UNIT_FAKES_CUDA_WORLD_H_
