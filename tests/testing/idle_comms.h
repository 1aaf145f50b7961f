// Communicators that carry nothing, and record when they are destroyed.
#ifndef CKPTD_TESTS_TESTING_IDLE_COMMS_H_
#define CKPTD_TESTS_TESTING_IDLE_COMMS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/comm/group_comm.h"

namespace ckptd {

class IdleComm final : public GroupComm {
 public:
  explicit IdleComm(std::function<void()> on_gone) : on_gone_(std::move(on_gone)) {}
  ~IdleComm() override { on_gone_(); }

  absl::Status Begin() override { return absl::OkStatus(); }
  absl::Status Send(const StagedMemory&, uint64_t, uint64_t, uint32_t) override {
    return absl::OkStatus();
  }
  absl::Status Receive(const StagedMemory&, uint64_t, uint64_t, uint32_t) override {
    return absl::OkStatus();
  }
  absl::Status Broadcast(const StagedMemory&, uint64_t, uint64_t, uint32_t) override {
    return absl::OkStatus();
  }
  absl::Status End(Deadline) override { return absl::OkStatus(); }
  absl::Status Wait(Deadline) override { return absl::OkStatus(); }
  absl::Status Close(Deadline) override { return absl::OkStatus(); }
  void Interrupt(std::function<absl::Status()>) override {}

 private:
  const std::function<void()> on_gone_;
};

class IdleComms final : public GroupComms {
 public:
  std::string version() const override { return "test 1"; }
  absl::StatusOr<std::string> MakeId() override { return std::to_string(++ids_); }
  absl::StatusOr<std::unique_ptr<GroupComm>> Join(GroupCommOptions,
                                                  GroupComm::Deadline deadline) override {
    on_join(deadline);
    if (!refusal.ok()) return refusal;
    return std::make_unique<IdleComm>([this] { on_gone(); });
  }
  void AwaitEnds() override { ++awaited; }

  absl::Status refusal;
  std::function<void(GroupComm::Deadline)> on_join = [](GroupComm::Deadline) {};
  std::function<void()> on_gone = [] {};
  int awaited = 0;

 private:
  int ids_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_IDLE_COMMS_H_
