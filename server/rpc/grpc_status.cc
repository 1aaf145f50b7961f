#include "server/rpc/grpc_status.h"

#include <string>

#include "ckptd/v1/error.pb.h"
#include "common/base/status.h"
#include "common/wire/sendable_text.h"

namespace ckptd {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kDomain[] = "ckptd";
// gRPC refuses metadata of more than 8 KiB by default, so long sentences are cut.
constexpr size_t kMaxSentence = 2048;

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string whole = MessageOf(status);
  std::string sentence = SendableText(whole, kMaxSentence);
  if (whole.size() > kMaxSentence) sentence += " ...";
  v1::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain(kDomain);
  for (const auto& [key, value] : FactsOf(status)) {
    (*info.mutable_metadata())[key] = SendableFact(key, value, kMaxSentence / 4);
  }
  v1::ErrorStatus details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(sentence);
  auto* any = details.add_details();
  any->set_type_url(kErrorInfoUrl);
  any->set_value(info.SerializeAsString());
  return {static_cast<grpc::StatusCode>(status.code()), sentence, details.SerializeAsString()};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  v1::ErrorStatus details;
  v1::ErrorInfo info;
  if (details.ParseFromString(status.error_details()) && details.details_size() > 0 &&
      details.details(0).type_url() == kErrorInfoUrl &&
      info.ParseFromString(details.details(0).value())) {
    return MakeError(code, info.reason(), status.error_message(),
                     Facts(info.metadata().begin(), info.metadata().end()));
  }
  return absl::Status(code, status.error_message());
}

}  // namespace ckptd
