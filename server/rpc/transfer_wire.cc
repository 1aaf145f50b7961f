#include "server/rpc/transfer_wire.h"

#include <algorithm>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Tags of SendRequest's fields: all are length-delimited.
constexpr uint8_t Tag(int field) { return static_cast<uint8_t>(field << 3 | 2); }
constexpr uint8_t kDataTag = Tag(v1::SendRequest::kDataFieldNumber);
// All fields except the payload are far smaller.
constexpr uint64_t kMaxFieldBytes = 64 << 10;

absl::Status Malformed(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kTransferInvalid,
                   "reading a message of a transfer: " + why +
                       "; run the same ckptd on every rank and load again");
}

void AppendVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Reads the bytes of several slices in order.
class SliceReader {
 public:
  explicit SliceReader(const std::vector<grpc::Slice>& slices) {
    for (const grpc::Slice& slice : slices) {
      parts_.push_back(std::as_bytes(std::span(slice.begin(), slice.size())));
      left_ += slice.size();
    }
  }

  uint64_t left() const { return left_; }

  bool ReadVarint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && left_ > 0; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  std::string ReadText(uint64_t bytes) {
    std::string text;
    while (text.size() < bytes) {
      const auto part = Take(bytes - text.size());
      text.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
    return text;
  }
  // All remaining bytes.
  std::vector<std::span<const std::byte>> Rest() {
    std::vector<std::span<const std::byte>> rest;
    while (left_ > 0) rest.push_back(Take(left_));
    return rest;
  }

 private:
  // One to `most` bytes that are in one piece.
  std::span<const std::byte> Take(uint64_t most) {
    while (parts_[at_].empty()) ++at_;
    const auto n = static_cast<size_t>(std::min<uint64_t>(most, parts_[at_].size()));
    const auto taken = parts_[at_].first(n);
    parts_[at_] = parts_[at_].subspan(n);
    left_ -= n;
    return taken;
  }

  std::vector<std::span<const std::byte>> parts_;
  size_t at_ = 0;
  uint64_t left_ = 0;
};

void DropReference(void* reference) {
  delete static_cast<std::shared_ptr<const std::byte[]>*>(reference);
}

}  // namespace

grpc::ByteBuffer ToWire(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

grpc::ByteBuffer ToWire(const Frame& frame) {
  v1::SendRequest request;
  v1::TransferFrame& header = *request.mutable_frame();
  header.set_file(frame.header.file);
  header.set_begin(frame.header.begin);
  header.set_end(frame.header.end);
  header.set_checksum(frame.header.checksum);
  std::string front = request.SerializeAsString();
  front += static_cast<char>(kDataTag);
  AppendVarint(frame.bytes, front);
  auto* const reference = new std::shared_ptr<const std::byte[]>(frame.data);
  const grpc::Slice slices[] = {
      grpc::Slice(front),
      grpc::Slice(const_cast<std::byte*>(frame.data.get()), frame.bytes, DropReference, reference)};
  return {slices, 2};
}

absl::StatusOr<SendMessage> FromWire(const grpc::ByteBuffer& buffer) {
  SendMessage message;
  if (!buffer.Dump(&message.slices).ok()) return Malformed("it cannot be unpacked");
  SliceReader reader(message.slices);
  std::string fields;
  while (reader.left() > 0) {
    uint64_t tag = 0;
    uint64_t bytes = 0;
    if (!reader.ReadVarint(tag) || !reader.ReadVarint(bytes) || bytes > reader.left()) {
      return Malformed("it ends early");
    }
    if (tag == kDataTag) {
      if (bytes != reader.left()) return Malformed("the payload is not its last field");
      message.has_data = true;
      message.data = reader.Rest();
      break;
    }
    if ((tag & 7) != 2 || bytes > kMaxFieldBytes) return Malformed("it has an unknown field");
    AppendVarint(tag, fields);
    AppendVarint(bytes, fields);
    fields += reader.ReadText(bytes);
  }
  if (!message.fields.ParseFromString(fields)) return Malformed("a field is damaged");
  return message;
}

FrameHeader FromProto(const v1::TransferFrame& frame) {
  return {frame.file(), frame.begin(), frame.end(), frame.checksum()};
}

}  // namespace ckptd
