// Feeds arbitrary messages, from clients and from other daemons, to what makes
// values of them. What is accepted says the same after a way to the wire and back.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "common/source/piece.h"
#include "inputs.pb.h"
#include "server/rpc/convert.h"
#include "tests/fuzz/message_input.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

// The same for equal messages, whose maps are in no order.
template <typename Message>
std::string InOrder(const Message& message) {
  std::string text;
  {
    google::protobuf::io::StringOutputStream stream(&text);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return text;
}

// Of a value: there, back, and there again is the same message.
template <typename Message, typename Value>
void CheckRoundTrip(const Value& value, const Message& sent) {
  const auto back = FromProto(sent);
  if constexpr (requires { back.ok(); }) {
    Require(back.ok(), "what we send, we accept: " + MessageOf(back.status()));
    Require(InOrder(ToProto(*back)) == InOrder(sent), "it comes as sent");
  } else {
    Require(InOrder(ToProto(back)) == InOrder(sent), "it comes as sent");
  }
  (void)value;
}

void CheckLoad(const absl::StatusOr<LoadRequest>& load) {
  if (!load.ok()) return RequireGoodError(load.status());
  Require(load->timeout > std::chrono::nanoseconds(0) && load->timeout <= std::chrono::hours(24),
          "a load has a deadline");
  if (const auto* stated = std::get_if<std::shared_ptr<const RankLayout>>(&load->layout)) {
    const RankLayout& layout = **stated;
    Require(layout.rank < layout.world_size, "a rank is one of the world");
    for (size_t i = 0; i < layout.targets.size(); ++i) {
      Require(layout.targets[i].sharding < layout.shardings.size(), "shardings exist");
      const auto& flat = layout.targets[i].flat;
      Require(!flat.has_value() || flat->flat < layout.flats.size(), "flat parameters exist");
      Require(i == 0 || layout.targets[i - 1].name <= layout.targets[i].name, "names are sorted");
    }
  }
  const v1::ProposeRequest sent = ToProto(load->layout.index() == 1 ? 1 : 0, *load);
  const auto back = FromProto(sent);
  Require(back.ok(), "what we propose is understood: " + MessageOf(back.status()));
  Require(RequestDigest(*back) == RequestDigest(*load), "it is the same request");
  Require(back->timeout == load->timeout, "it has the same deadline");
  Require(DifferingFields(*load, *back).empty(), "nothing differs");
  Require(!DescribeLayout(*load).empty() || load->layout.index() == 0, "it can be shown");
}

void CheckPrepare(v1::PrepareRequest request) {
  // The key is a digest: nothing that is tried at random would have the right one.
  auto asked = FromProto(request.spec());
  if (asked.ok()) request.set_load_key(LoadKey(*asked));
  const auto call = FromProto(request);
  if (!call.ok()) return RequireGoodError(call.status());
  for (const TensorEntry& tensor : call->index->tensors) {
    Require(!tensor.pieces.empty(), "a tensor lies somewhere");
    Require(tensor.group < call->index->groups.size(), "groups exist");
    for (const Piece& piece : tensor.pieces) {
      Require(piece.file < call->index->files.size(), "files exist");
      Require(WhyImpossible(piece, tensor, call->index->files[piece.file].bytes).empty(),
              "pieces hold together");
    }
  }
  const auto back = FromProto(ToProto(*call));
  Require(back.ok(), "what we send, we accept: " + MessageOf(back.status()));
  Require(RequestDigest(back->request) == RequestDigest(call->request), "the request is the same");
  Require(back->index->files == call->index->files, "the files are the same");
  Require(back->index->tensors.size() == call->index->tensors.size(), "the tensors are the same");
  for (size_t i = 0; i < call->index->tensors.size(); ++i) {
    const TensorEntry& a = call->index->tensors[i];
    const TensorEntry& b = back->index->tensors[i];
    const auto same = [](const Piece& x, const Piece& y) {
      return x.file == y.file && x.offset == y.offset && x.bytes == y.bytes && x.box == y.box &&
             x.strides == y.strides;
    };
    Require(a.kind == b.kind && a.dtype == b.dtype && a.shape == b.shape, "they are what they were");
    Require(std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(), same),
            "they lie where they were");
  }
}

void CheckOrder(const v1::ReadOrder& order) {
  const auto read = FromProto(order);
  if (!read.ok()) return RequireGoodError(read.status());
  Require(read->part < read->parts, "a part is one of them");
  CheckRoundTrip(*read, ToProto(*read));
}

void CheckAbort(const v1::AbortRequest& abort) {
  const Facts facts(abort.facts().begin(), abort.facts().end());
  const absl::Status status = FromFailure(abort.failure(), facts);
  Require(!status.ok(), "a failure is an error");
  Require(ToFailure(status).code() == static_cast<int>(status.code()), "it has its code");
}

void CheckProgress(const v1::Progress& progress) {
  const Progress read = FromProto(progress);
  CheckRoundTrip(read, ToProto(read));
}

void FuzzRequest(const RequestInput& input) {
  switch (input.message_case()) {
    case RequestInput::kLoad:
      return CheckLoad(FromProto(input.load().spec()));
    case RequestInput::kPlan:
      return CheckLoad(FromProto(input.plan().spec()));
    case RequestInput::kPropose:
      return CheckLoad(FromProto(input.propose()));
    case RequestInput::kPrepare:
      return CheckPrepare(input.prepare());
    case RequestInput::kPrepared:
      return CheckRoundTrip(input.prepared(), ToProto(FromProto(input.prepared())));
    case RequestInput::kExecute:
      CheckOrder(input.execute().read());
      return CheckProgress(input.execute().progress());
    case RequestInput::kExecuted:
      return CheckRoundTrip(input.executed(), ToProto(FromProto(input.executed())));
    case RequestInput::kCommit:
      return CheckRoundTrip(input.commit(), ToProto(FromProto(input.commit())));
    case RequestInput::kAbort:
      return CheckAbort(input.abort());
    case RequestInput::kJoin: {
      const v1::JoinRequest sent = ToProto(IdentityFrom(input.join()), ResidentsFrom(input.join()));
      Require(ToProto(IdentityFrom(sent), ResidentsFrom(sent)).SerializeAsString() ==
                  sent.SerializeAsString(),
              "a join comes as sent");
      return;
    }
    case RequestInput::kProgress:
      return CheckProgress(input.progress().progress());
    case RequestInput::kHeartbeat:
      return CheckRoundTrip(input.heartbeat(), ToProto(FromProto(input.heartbeat())));
    case RequestInput::kAlive:
      return CheckRoundTrip(input.alive(), ToProto(FromProto(input.alive())));
    case RequestInput::MESSAGE_NOT_SET:
      return;
  }
}

}  // namespace
}  // namespace ckptd::fuzz

CKPTD_FUZZ_MESSAGE(ckptd::fuzz::RequestInput, ckptd::fuzz::FuzzRequest)
