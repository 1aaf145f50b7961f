#include "server/core/local_link.h"

#include <future>
#include <utility>

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
  RankSide& rank_side = rank_side_;
  const std::string& name = call.name;
  return std::make_unique<LocalStream>(std::async(
      std::launch::async, [&rank_side, name] { return rank_side.Clear(name); }));
}

}  // namespace ckptd
