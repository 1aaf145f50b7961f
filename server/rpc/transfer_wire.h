// ckptd.v1.SendRequest as gRPC slices. The payload is not copied, neither when a frame is sent
// nor when it is parsed.
#ifndef CKPTD_SERVER_RPC_TRANSFER_WIRE_H_
#define CKPTD_SERVER_RPC_TRANSFER_WIRE_H_

#include <grpcpp/support/byte_buffer.h>

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/v1/transfer_service.pb.h"
#include "server/transfer/frames.h"

namespace ckptd {

// The full name of TransferService.Send, for calls with raw messages.
inline constexpr char kSendMethod[] = "/ckptd.v1.TransferService/Send";

grpc::ByteBuffer ToWire(const google::protobuf::MessageLite& message);
// Keeps a reference to the payload until gRPC has sent it.
grpc::ByteBuffer ToWire(const Frame& frame);

// A received message.
struct SendMessage {
  v1::SendRequest fields;  // without `data`
  bool has_data = false;
  std::vector<std::span<const std::byte>> data;  // in `slices`
  std::vector<grpc::Slice> slices;               // they own the memory
};
// Errors: InvalidArgument TRANSFER_INVALID for bytes that are no SendRequest with `data` as its
// last field.
absl::StatusOr<SendMessage> FromWire(const grpc::ByteBuffer& buffer);

FrameHeader FromProto(const v1::TransferFrame& frame);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_TRANSFER_WIRE_H_
