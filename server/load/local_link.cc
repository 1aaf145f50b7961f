#include "server/load/local_link.h"

#include <future>
#include <utility>

#include "common/base/at_once.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Clears beside the transfer; the leader's progress is read where it is made.
class LocalStream final : public ExecuteStream {
 public:
  explicit LocalStream(std::future<absl::Status> cleared) : cleared_(std::move(cleared)) {}
  bool Send(const Progress&) override { return true; }
  absl::StatusOr<ReadReport> Finish() override {
    CKPTD_RETURN_IF_ERROR(cleared_.get());
    return ReadReport();
  }

 private:
  std::future<absl::Status> cleared_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExecuteStream>> LocalLink::Execute(const ExecuteCall& call) {
  RankLoad& rank_side = rank_side_;
  const std::string& name = call.name;
  CKPTD_ASSIGN_OR_RETURN(auto cleared, Async("clearing padding of " + name, [&rank_side, name] {
    return rank_side.Clear(name);
  }));
  return std::make_unique<LocalStream>(std::move(cleared));
}

}  // namespace ckptd
