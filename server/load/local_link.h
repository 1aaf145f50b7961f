// The leader's link to its own rank: direct calls on the thread it is called on,
// which is the load worker (or one waiting for it).
#ifndef CKPTD_SERVER_LOAD_LOCAL_LINK_H_
#define CKPTD_SERVER_LOAD_LOCAL_LINK_H_

#include <memory>
#include <string>

#include "server/load/rank_load.h"
#include "server/protocol/links.h"

namespace ckptd {

class LocalLink final : public MemberLink {
 public:
  explicit LocalLink(RankLoad& rank_side) : rank_side_(rank_side) {}

  absl::StatusOr<PrepareReply> Prepare(const PrepareCall& call, Deadline) override {
    return rank_side_.Prepare(call);
  }
  // The leader reads its own part itself.
  absl::StatusOr<std::unique_ptr<ExecuteStream>> Execute(const ExecuteCall& call) override;
  // Never asked for: a reader has its own memory.
  std::unique_ptr<TransferSink> OpenSink(const SinkCall&) override { return nullptr; }
  absl::Status Commit(const CommitCall& call, Deadline) override { return rank_side_.Commit(call); }
  absl::Status Abort(const std::string& name, const absl::Status& why, Deadline) override {
    rank_side_.Abort(name, why);
    return absl::OkStatus();
  }
  absl::Status GiveBack(const std::string& name, Deadline) override {
    rank_side_.GiveBack(name);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Holds(const std::string& name, Deadline) override {
    return rank_side_.Holds(name);
  }
  absl::Status Probe(Deadline) override { return absl::OkStatus(); }

 private:
  RankLoad& rank_side_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_LOCAL_LINK_H_
