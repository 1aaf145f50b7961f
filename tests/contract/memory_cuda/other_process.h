// A second process for tests of device memory, because a handle of legacy CUDA IPC cannot be
// opened in the process that made it.
#ifndef CKPTD_TESTS_CONTRACT_MEMORY_CUDA_OTHER_PROCESS_H_
#define CKPTD_TESTS_CONTRACT_MEMORY_CUDA_OTHER_PROCESS_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/device_memory.h"
#include "common/base/status.h"
#include "common/cuda/stream.h"
#include "tests/contract/memory/memory_contract_fixture.h"
#include "tests/testing/cuda.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {

// Opens, reads, writes and closes slabs for this process, as client/cpp does. It takes one
// request at a time. Each answer must come within a minute, or the test fails.
class OtherProcess {
 public:
  enum class Do : uint32_t { kOpen, kRead, kWrite, kClose };
  struct Request {
    Do what = Do::kOpen;
    AttachMode mode = AttachMode::kShared;
    uint64_t number = 0;  // number of the slab, chosen by the process that opens it
    uint64_t offset = 0;
    uint64_t bytes = 0;
    char device[64] = {};
    char handle[64] = {};
  };
  struct Answer {
    int code = 0;  // canonical
    uint64_t address = 0;
    char reason[64] = {};
  };

  static void Start() {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const timeval minute = {60, 0};
    ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
    pid_ = ::fork();
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) {
      ::close(ends[0]);
      Serve(ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    socket_ = ends[0];
  }

  static void Stop() {
    ::close(socket_);
    ::waitpid(pid_, nullptr, 0);
  }

  // `in` follows the request, `out` the answer.
  static Answer Ask(const Request& request, std::span<const std::byte> in = {},
                    std::span<std::byte> out = {}) {
    Answer answer;
    const bool fine = Send(socket_, std::as_bytes(std::span(&request, 1))) && Send(socket_, in) &&
                      Receive(socket_, std::as_writable_bytes(std::span(&answer, 1))) &&
                      Receive(socket_, out);
    EXPECT_TRUE(fine) << "the other process does not answer";
    return answer;
  }

 private:
  static bool Send(int socket, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return true;
  }
  static bool Receive(int socket, std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::recv(socket, bytes.data(), bytes.size(), 0);
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return true;
  }

  static absl::Status Write(uint64_t address, std::span<const std::byte> bytes) {
    const auto device = TestGpu();
    CKPTD_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Make(device));
    {
      const CudaScope scope(*device);
      CKPTD_RETURN_IF_ERROR(device->Check(
          device->driver().MemcpyHtoDAsync(address, bytes.data(), bytes.size(), stream.get()),
          "writing"));
    }
    return stream.Wait(std::chrono::seconds(60));
  }

  static void Serve(int socket) {
    std::map<uint64_t, DeviceMemory> slabs;
    Request request;
    while (Receive(socket, std::as_writable_bytes(std::span(&request, 1)))) {
      Answer answer;
      std::vector<std::byte> data(request.what == Do::kOpen ? 0 : request.bytes);
      absl::Status status;
      if (request.what == Do::kOpen) {
        auto opened = DeviceMemory::Open(std::string(request.handle, sizeof(request.handle)),
                                         request.device, request.bytes, request.mode);
        status = opened.status();
        if (opened.ok()) slabs[request.number] = *std::move(opened);
      } else if (request.what == Do::kRead) {
        status = slabs[request.number].Read(request.offset, data);
      } else if (request.what == Do::kWrite) {
        if (!Receive(socket, data)) return;
        status = Write(slabs[request.number].address() + request.offset, data);
      } else {
        slabs.erase(request.number);
      }
      answer.code = static_cast<int>(status.code());
      std::strncpy(answer.reason, std::string(ReasonOf(status)).c_str(), sizeof(answer.reason) - 1);
      if (slabs.count(request.number) > 0) answer.address = slabs[request.number].address();
      if (!Send(socket, std::as_bytes(std::span(&answer, 1)))) return;
      if (request.what == Do::kRead && !Send(socket, data)) return;
    }
  }

  inline static pid_t pid_ = -1;
  inline static int socket_ = -1;
};

// A slab that the other process has open.
class SlabOfOtherProcess final : public ClientMemory {
 public:
  static absl::StatusOr<std::unique_ptr<ClientMemory>> Attach(SlabHandle handle, AttachMode mode) {
    static uint64_t numbers = 0;
    OtherProcess::Request request;
    request.mode = mode;
    request.number = ++numbers;
    request.bytes = handle.segment_bytes.front();
    handle.device.copy(request.device, sizeof(request.device) - 1);
    handle.ipc_handle.copy(request.handle, sizeof(request.handle));
    const OtherProcess::Answer answer = OtherProcess::Ask(request);
    if (answer.code == 0) return std::make_unique<SlabOfOtherProcess>(request, answer.address);
    return MakeError(static_cast<absl::StatusCode>(answer.code), answer.reason, "elsewhere");
  }

  SlabOfOtherProcess(OtherProcess::Request opened, uint64_t address)
      : opened_(opened), address_(address) {}
  ~SlabOfOtherProcess() override { OtherProcess::Ask(Make(OtherProcess::Do::kClose, 0, 0)); }

  uint64_t address() const { return address_; }  // in the other process
  uint64_t bytes() const override { return opened_.bytes; }
  std::vector<std::byte> Read(uint64_t offset, uint64_t bytes) const override {
    std::vector<std::byte> out(bytes);
    EXPECT_EQ(OtherProcess::Ask(Make(OtherProcess::Do::kRead, offset, bytes), {}, out).code, 0);
    return out;
  }
  void Write(uint64_t offset, std::span<const std::byte> bytes) override {
    const auto request = Make(OtherProcess::Do::kWrite, offset, bytes.size());
    EXPECT_EQ(OtherProcess::Ask(request, bytes).code, 0);
  }

 private:
  OtherProcess::Request Make(OtherProcess::Do what, uint64_t offset, uint64_t bytes) const {
    OtherProcess::Request request = opened_;
    request.what = what;
    request.offset = offset;
    request.bytes = bytes;
    return request;
  }

  const OtherProcess::Request opened_;
  const uint64_t address_;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_MEMORY_CUDA_OTHER_PROCESS_H_
