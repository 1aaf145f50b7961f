// Feeds arbitrary messages of a transfer to what takes them off the wire and places
// them. Whatever comes: nothing outside of the tensors is written, what was taken
// lies where the plan wants it, and after an error nothing more is taken.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/digest.h"
#include "inputs.pb.h"
#include "server/rpc/transfer_wire.h"
#include "server/transfer/frame_receiver.h"
#include "tests/fuzz/message_input.h"
#include "tests/fuzz/plan_properties.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

constexpr auto kUntouched = std::byte{0xee};
constexpr size_t kMaxSteps = 64;

// One of the plans that receive.
struct World {
  struct File {
    std::vector<bool> needed;                 // per byte
    std::vector<std::vector<uint64_t>> home;  // per byte: slab bytes; none where it casts
  };
  struct Gap {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  std::shared_ptr<const CheckpointIndex> index;
  RankPlan plan;
  bool casts = false;
  std::vector<File> files;
  std::vector<Gap> gaps;  // of the slab: what no tensor holds
};

std::byte ContentAt(uint64_t file, uint64_t at) { return std::byte(at * 7 + at / 256 + file + 1); }

void FindHomes(World& world) {
  for (const CopyOp& op : world.plan.ops) {
    world.casts = world.casts || op.casts();
    World::File& of = world.files[op.file];
    ForEachRun(op, [&](uint64_t file, uint64_t slab, uint64_t) {
      for (uint64_t i = 0; i < op.run_bytes; ++i) {
        of.needed[file + i] = true;
        if (!op.casts()) of.home[file + i].push_back(slab + i);
      }
    });
  }
}

void FindGaps(World& world) {
  std::map<uint64_t, uint64_t> tensors;  // begin and end
  for (const PlannedTensor& tensor : world.plan.tensors) {
    tensors[tensor.offset] = tensor.offset + tensor.bytes;
  }
  uint64_t end = 0;
  for (const auto& [begin, its_end] : tensors) {
    world.gaps.push_back({end, begin});
    end = its_end;
  }
  world.gaps.push_back({end, world.plan.slab_bytes});
}

World MakeWorld(const std::string& rules, Dtype cast_to) {
  auto index = std::make_shared<CheckpointIndex>();
  const auto add = [&](const std::string& name, Dtype dtype, const Shape& shape, uint32_t file) {
    const uint64_t bytes = ElementCount(shape) * BitsOf(dtype) / 8;
    const uint64_t offset = index->files[file].bytes;
    index->tensors.push_back({.name = name,
                              .dtype = dtype,
                              .shape = shape,
                              .pieces = {{file, offset, bytes, {Shape(shape.size()), shape}}}});
    index->files[file].bytes += bytes;
  };
  index->files.push_back({"/c/a.safetensors", 80, "2", "4", "1", 3});
  index->files.push_back({"/c/b.safetensors", 16, "3", "4", "1", 3});
  add("a", Dtype::kF32, {6, 8}, 0);
  add("b", Dtype::kU8, {64}, 1);
  add("c", Dtype::kBF16, {4, 4, 2}, 0);
  add("d", Dtype::kF64, {2, 2}, 1);
  World world;
  const RankLayout layout = LayoutRules::Parse(rules)->ForRank(*index, 1).value();
  world.plan = PlanRank(*index, layout, {cast_to, {}}).value();
  for (const SourceFile& file : index->files) {
    world.files.push_back({std::vector<bool>(file.bytes), {}});
    world.files.back().home.resize(file.bytes);
  }
  world.index = std::move(index);
  FindHomes(world);
  FindGaps(world);
  return world;
}

const World& WorldOf(uint32_t number) {
  constexpr char kColumns[] =
      R"json({"mesh":{"shape":[2]},"default":{"placements":["shard(-1)"]}})json";
  static const std::vector<World> worlds = {
      MakeWorld("fsdp:2", Dtype::kUnspecified), MakeWorld("replicate:2", Dtype::kUnspecified),
      MakeWorld(kColumns, Dtype::kUnspecified), MakeWorld(kColumns, Dtype::kF16),
      MakeWorld("fsdp:2", Dtype::kF64)};
  return worlds[number % worlds.size()];
}

// What an honest reader sends for the range that the frame states.
void MakeHonest(const World& world, v1::SendRequest& message) {
  v1::TransferFrame& frame = *message.mutable_frame();
  std::string payload;
  if (frame.file() < world.files.size()) {
    const auto& needed = world.files[frame.file()].needed;
    const uint64_t end = std::min<uint64_t>(frame.end(), needed.size());
    for (uint64_t at = frame.begin(); at < end; ++at) {
      if (needed[at]) payload += static_cast<char>(ContentAt(frame.file(), at));
    }
  }
  frame.set_checksum(Xxh3(payload));
  message.set_data(payload);
}

grpc::ByteBuffer InSlices(const std::string& bytes, size_t step) {
  std::vector<grpc::Slice> slices;
  if (step == 0) step = std::max<size_t>(bytes.size(), 1);
  for (size_t at = 0; at < bytes.size(); at += step) slices.emplace_back(bytes.substr(at, step));
  return {slices.data(), slices.size()};
}

class Receiving {
 public:
  explicit Receiving(const World& world)
      : world_(world), memory_(world.plan.slab_bytes, kUntouched), expected_(memory_) {
    for (const World::File& file : world.files) taken_.emplace_back(file.needed.size());
    // Cut where no element ends.
    const uint64_t cut = world.plan.slab_bytes / 2 + 3;
    SlabView view;
    const std::span<std::byte> all(memory_);
    view.segments = {all.first(cut), all.subspan(cut)};
    receiver_ = FrameReceiver::Make(world.index, world.plan, view, true).value();
  }

  void Step(const TransferInput::Step& step) {
    v1::SendRequest request = step.message();
    if (step.honest()) MakeHonest(world_, request);
    const std::string wire = step.bytes().empty() ? request.SerializeAsString() : step.bytes();
    const auto message = FromWire(InSlices(wire, step.slice_bytes()));
    if (!message.ok()) return RequireGoodError(message.status());
    uint64_t bytes = 0;
    for (const auto& piece : message->data) bytes += piece.size();
    Require(message->has_data || bytes == 0, "what has no payload has no bytes");
    Require(bytes <= wire.size(), "a payload is part of its message");
    if (message->has_data) Take(FromProto(message->fields.frame()), message->data);
  }

  void Finish() {
    const absl::Status closed = receiver_->Close(std::chrono::seconds(10));
    Require(closed.ok() == !failed_, "the end knows of every error");
    Require(receiver_->placed_bytes() <= world_.plan.tensor_bytes, "no byte is placed twice");
    CheckOutside();
    if (failed_) return;
    CheckPlaces();
    if (receiver_->placed_bytes() == world_.plan.tensor_bytes) CheckDigests();
  }

 private:
  void Take(const FrameHeader& header, const std::vector<std::span<const std::byte>>& pieces) {
    const absl::Status taken = receiver_->Take(header, pieces);
    if (!taken.ok()) {
      RequireGoodError(taken);
      failed_ = true;
      return;
    }
    Require(!failed_, "after an error nothing is taken");
    const World::File& file = world_.files[header.file];
    uint64_t at = header.begin;
    for (const auto& piece : pieces) {
      for (const std::byte byte : piece) {
        while (at < file.needed.size() && !file.needed[at]) ++at;
        Require(at < std::min<uint64_t>(file.needed.size(), header.end),
                "no byte is taken that is not needed");
        Require(!taken_[header.file][at], "no byte is taken twice");
        taken_[header.file][at] = true;
        for (const uint64_t place : file.home[at]) expected_[place] = byte;
        ++at;
      }
    }
  }

  // Padding and gaps are as they were.
  void CheckOutside() const {
    for (const auto& [begin, end] : world_.gaps) {
      static const std::vector<std::byte> untouched(64 << 10, kUntouched);
      Require(end - begin <= untouched.size() &&
                  std::memcmp(memory_.data() + begin, untouched.data(), end - begin) == 0,
              "only tensors are written");
    }
  }

  void CheckPlaces() const {
    if (world_.casts) return;
    Require(std::memcmp(memory_.data(), expected_.data(), memory_.size()) == 0,
            "bytes lie where the plan wants them");
  }

  void CheckDigests() const {
    const auto digests = receiver_->Digests();
    Require(digests.ok() && digests->size() == world_.plan.tensors.size(), "all have digests");
    for (size_t i = 0; i < digests->size(); ++i) {
      const PlannedTensor& tensor = world_.plan.tensors[i];
      Require((*digests)[i] == TensorDigest({memory_.data() + tensor.offset, tensor.bytes}),
              "the digest is of what lies there");
    }
  }

  const World& world_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> expected_;  // what the memory holds without an error; no casts
  std::unique_ptr<FrameReceiver> receiver_;
  std::vector<std::vector<bool>> taken_;  // per file and byte
  bool failed_ = false;
};

void FuzzTransfer(const TransferInput& input) {
  Receiving receiving(WorldOf(input.plan()));
  size_t steps = 0;
  for (const auto& step : input.steps()) {
    if (++steps > kMaxSteps) break;
    receiving.Step(step);
  }
  receiving.Finish();
}

}  // namespace
}  // namespace ckptd::fuzz

CKPTD_FUZZ_MESSAGE(ckptd::fuzz::TransferInput, ckptd::fuzz::FuzzTransfer)
