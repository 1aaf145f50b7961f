// A communicator between threads of a test, device memory in this process, and lanes whose bytes
// become visible only when they are finished.
#ifndef CKPTD_TESTS_TESTING_COMMS_IN_PROCESS_H_
#define CKPTD_TESTS_TESTING_COMMS_IN_PROCESS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/comm/group_comm.h"
#include "server/memory/transit.h"

namespace ckptd {

inline std::byte* At(const StagedMemory& memory, uint64_t offset) {
  return reinterpret_cast<std::byte*>(memory.address() + offset);
}

// A slab, or a view of one.
class BytesInProcess final : public StagedMemory {
 public:
  explicit BytesInProcess(uint64_t bytes) : bytes_(bytes) {}
  BytesInProcess(uint64_t bytes, std::byte fill) : bytes_(bytes), content_(bytes, fill) {
    LieAt(reinterpret_cast<uint64_t>(content_.data()));
  }
  uint64_t bytes() const override { return bytes_; }
  absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() override;
  unsigned Lanes() const override { return 2; }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) override {
    std::memcpy(out.data(), At(*this, offset), out.size());
    return absl::OkStatus();
  }
  absl::Status Zero(std::span<const SlabSpan> spans) override {
    for (const SlabSpan& span : spans) std::memset(At(*this, span.offset), 0, span.bytes);
    cleared += spans.size();
    return absl::OkStatus();
  }
  uint64_t address() const override { return address_.load(); }
  void LieAt(uint64_t address) { address_ = address; }
  const std::vector<std::byte>& content() const { return content_; }
  // Bytes that lanes gave room for, at this place or at several places including it.
  std::atomic<uint64_t> written = 0;
  std::atomic<uint64_t> cleared = 0;  // spans

 private:
  const uint64_t bytes_;
  std::vector<std::byte> content_;
  std::atomic<uint64_t> address_ = 0;
};

class LateLane final : public StagingLane {
 public:
  ~LateLane() override { static_cast<void>(Finish()); }
  std::span<std::byte> Stage(std::span<const StagedPlace> places, uint64_t into,
                             uint64_t bytes) override {
    static_cast<BytesInProcess*>(places.front().memory)->written += bytes;
    staged_.push_back({{places.begin(), places.end()}, into, std::vector<std::byte>(bytes)});
    return staged_.back().bytes;
  }
  bool CanCopyFromBlocks(const StagedMemory&) const override { return false; }
  std::span<std::byte> StageBlock(uint64_t, size_t) override { return {}; }
  void CopyFromBlock(StagedMemory&, const BlockCopy&) override {}
  absl::Status Finish() override {
    for (const Staged& one : staged_) {
      for (const StagedPlace& to : one.places) {
        std::memcpy(At(*to.memory, to.offset + one.into), one.bytes.data(), one.bytes.size());
      }
    }
    staged_.clear();
    return absl::OkStatus();
  }

 private:
  struct Staged {
    std::vector<StagedPlace> places;
    uint64_t into;
    std::vector<std::byte> bytes;
  };
  std::deque<Staged> staged_;
};

inline absl::StatusOr<std::unique_ptr<StagingLane>> BytesInProcess::OpenLane() {
  return std::make_unique<LateLane>();
}

class TransitInProcess : public TransitMemory {
 public:
  absl::Status Reserve(uint64_t bytes) override {
    room_.assign(bytes, std::byte{0});
    return absl::OkStatus();
  }
  std::shared_ptr<StagedMemory> NewView(uint64_t slab_bytes) override {
    return std::make_shared<BytesInProcess>(slab_bytes);
  }
  void MapWindow(StagedMemory& view, uint64_t begin, uint64_t at) override {
    static_cast<BytesInProcess&>(view).LieAt(reinterpret_cast<uint64_t>(room_.data()) + at - begin);
  }

 private:
  std::vector<std::byte> room_;
};

// Shared by the ranks of one communicator: messages by sender and receiver, and a record for the
// test.
class CommsWorld {
 public:
  using Message = std::vector<std::byte>;
  struct Sent {
    uint32_t from;
    uint32_t to;
    uint64_t bytes;
  };

  void Put(uint32_t from, uint32_t to, Message message) {
    MutexLock lock(mutex_);
    sent_.push_back({from, to, message.size()});
    queues_[{from, to}].push_back(std::move(message));
    changed_.NotifyAll();
  }
  // Empty once `deadline` has passed.
  absl::StatusOr<Message> Take(uint32_t from, uint32_t to, GroupComm::Deadline deadline,
                               const std::function<absl::Status()>& interrupted) {
    for (;;) {
      {
        MutexLock lock(mutex_);
        std::deque<Message>& queue = queues_[{from, to}];
        changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(5),
                           [&] { return !queue.empty(); });
        if (!queue.empty()) {
          Message message = std::move(queue.front());
          queue.pop_front();
          changed_.NotifyAll();
          return message;
        }
      }
      if (interrupted) CKPTD_RETURN_IF_ERROR(interrupted());
      if (std::chrono::steady_clock::now() > deadline) return Message();
    }
  }
  // Waits until every message has been taken. False once `deadline` has passed.
  absl::StatusOr<bool> AwaitTaken(uint32_t from, uint32_t to, GroupComm::Deadline deadline,
                                  const std::function<absl::Status()>& interrupted) {
    for (;;) {
      {
        MutexLock lock(mutex_);
        const std::deque<Message>& queue = queues_[{from, to}];
        changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(5),
                           [&] { return queue.empty(); });
        if (queue.empty()) return true;
      }
      if (interrupted) CKPTD_RETURN_IF_ERROR(interrupted());
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
  }
  std::vector<Sent> sent() const {
    MutexLock lock(mutex_);
    return sent_;
  }
  // One rank's exchange: its receivers, and how long it may take.
  struct Asked {
    std::vector<uint32_t> to;
    std::chrono::nanoseconds patience;
  };
  void Note(uint32_t rank, Asked asked) {
    MutexLock lock(mutex_);
    asked_[rank].push_back(std::move(asked));
  }
  std::vector<Asked> asked(uint32_t rank) {
    MutexLock lock(mutex_);
    return asked_[rank];
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<Message>> queues_ ABSL_GUARDED_BY(mutex_);
  std::vector<Sent> sent_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, std::vector<Asked>> asked_ ABSL_GUARDED_BY(mutex_);
};

// Sends and receives in Wait, so that memory that changes before is found. As with NCCL's large
// messages, a send ends when it has been received, so a sender sees that its receiver has failed.
class CommInProcess final : public GroupComm {
 public:
  CommInProcess(CommsWorld& world, GroupCommOptions options)
      : world_(world), options_(std::move(options)) {}

  // Makes the exchange with this number fail.
  size_t fail_at = SIZE_MAX;
  size_t exchanges() const { return exchanges_; }

  absl::Status Begin() override {
    begun_ = std::chrono::steady_clock::now();
    return failed_;
  }
  absl::Status Send(const StagedMemory& from, uint64_t offset, uint64_t bytes,
                    uint32_t peer) override {
    sends_.push_back({&from, offset, bytes, peer});
    return failed_;
  }
  absl::Status Receive(const StagedMemory& to, uint64_t offset, uint64_t bytes,
                       uint32_t peer) override {
    receives_.push_back({&to, offset, bytes, peer});
    return failed_;
  }
  absl::Status Broadcast(const StagedMemory& memory, uint64_t offset, uint64_t bytes,
                         uint32_t root) override {
    if (root != options_.rank) return Receive(memory, offset, bytes, root);
    for (uint32_t peer = 0; peer < options_.names.size(); ++peer) {
      if (peer != root) CKPTD_RETURN_IF_ERROR(Send(memory, offset, bytes, peer));
    }
    return failed_;
  }
  absl::Status End(Deadline deadline) override {
    CommsWorld::Asked asked{{}, deadline - begun_};
    for (const Operation& one : sends_) asked.to.push_back(one.peer);
    world_.Note(options_.rank, std::move(asked));
    return failed_;
  }
  absl::Status Wait(Deadline deadline) override {
    if (failed_.ok()) failed_ = Carry(deadline);
    return failed_;
  }
  absl::Status Close(Deadline) override { return failed_; }
  void Interrupt(std::function<absl::Status()> interrupted) override {
    options_.interrupted = std::move(interrupted);
  }

 private:
  struct Operation {
    const StagedMemory* memory;
    uint64_t offset;
    uint64_t bytes;
    uint32_t peer;
  };

  absl::Status Late(uint32_t peer) const {
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                     "waiting for rank " + std::to_string(options_.names[peer]));
  }
  absl::Status Carry(Deadline deadline) {
    if (exchanges_++ == fail_at) {
      return MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed, "as the test wants");
    }
    for (const Operation& one : sends_) {
      const std::byte* const from = At(*one.memory, one.offset);
      world_.Put(options_.rank, one.peer, {from, from + one.bytes});
    }
    for (const Operation& one : receives_) {
      CKPTD_ASSIGN_OR_RETURN(const CommsWorld::Message message,
                             world_.Take(one.peer, options_.rank, deadline, options_.interrupted));
      if (message.empty()) return Late(one.peer);
      if (message.size() != one.bytes) {
        return MakeError(absl::StatusCode::kInternal, reason::kNcclFailed,
                         "a message has another length than what it was received as");
      }
      std::memcpy(At(*one.memory, one.offset), message.data(), message.size());
    }
    for (const Operation& one : sends_) {
      CKPTD_ASSIGN_OR_RETURN(const bool taken, world_.AwaitTaken(options_.rank, one.peer, deadline,
                                                                 options_.interrupted));
      if (!taken) return Late(one.peer);
    }
    sends_.clear();
    receives_.clear();
    return absl::OkStatus();
  }

  CommsWorld& world_;
  GroupCommOptions options_;
  std::vector<Operation> sends_;
  std::vector<Operation> receives_;
  size_t exchanges_ = 0;
  Deadline begun_;
  absl::Status failed_;  // the first error stays
};

class CommsInProcess final : public GroupComms {
 public:
  explicit CommsInProcess(CommsWorld& world) : world_(world) {}

  size_t fail_at = SIZE_MAX;  // for communicators that join from now on
  size_t joined = 0;

  std::string version() const override { return "test 1"; }
  absl::StatusOr<std::string> MakeId() override { return std::to_string(++ids_); }
  absl::StatusOr<std::unique_ptr<GroupComm>> Join(GroupCommOptions options,
                                                  GroupComm::Deadline) override {
    auto comm = std::make_unique<CommInProcess>(world_, std::move(options));
    comm->fail_at = fail_at;
    ++joined;
    return comm;
  }

 private:
  CommsWorld& world_;
  int ids_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_COMMS_IN_PROCESS_H_
