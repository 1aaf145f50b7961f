#include "server/rpc/join_load.h"

#include <string>
#include <utility>

#include "server/rpc/convert.h"
#include "server/rpc/grpc_status.h"

namespace ckptd {
namespace {

class JoinReactor final : public grpc::ServerUnaryReactor {
 public:
  JoinReactor(LocalParticipants& participants, std::string id, v1::JoinLoadResponse* response)
      : participants_(participants), id_(std::move(id)), response_(response) {}

  void Answer(const absl::Status& outcome) {
    *response_ = AnswerOf(outcome);
    Finish(grpc::Status::OK);
  }
  // Has the answer called, unless it was called before.
  void OnCancel() override { participants_.Lost(id_); }
  void OnDone() override { delete this; }

 private:
  LocalParticipants& participants_;
  const std::string id_;
  v1::JoinLoadResponse* const response_;
};

}  // namespace

grpc::ServerUnaryReactor* JoinLoad(Node& node, const v1::JoinLoadRequest& request,
                                   std::optional<uid_t> guest, v1::JoinLoadResponse* response) {
  Participant participant = FromProto(request);
  participant.guest = guest;
  auto* const reactor = new JoinReactor(node.participants(), participant.id, response);
  absl::Status status = node.CheckNotDraining();
  if (status.ok()) {
    status = node.participants().Join(
        std::move(participant),
        [reactor](const absl::Status& outcome) { reactor->Answer(outcome); }, Clock::now());
  }
  if (!status.ok()) reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace ckptd
