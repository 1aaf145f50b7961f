#include "common/source/pickle/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/pickle/opcodes.h"

namespace ckptd::pickle {
namespace {

// Copies and comparisons of real pickles: each value at most a few times.
constexpr size_t kRepeatedPerByte = 4;
constexpr size_t kRepeatedAlways = 64 * 1024;
constexpr size_t kCheckedAtOnce = 32;
// Memory: values of real pickles take a few bytes for each of their own.
constexpr size_t kMemoryAlways = size_t{16} << 20;
constexpr size_t kMemoryPerByte = 32;
constexpr size_t kBytesOfFarMemo = 64;
// So many numbers of the memo are left out by picklers that number what they write.
constexpr size_t kMemoGap = 256;
// No container gets more elements than there are bytes, and they are counted by 32 bits.
constexpr size_t kLongestPickle = std::numeric_limits<uint32_t>::max();

}  // namespace

Interpreter::Interpreter(std::string_view bytes, const Limits& limits)
    : bytes_(bytes.substr(0, std::min(limits.pickle_bytes, kLongestPickle))),
      is_whole_(bytes_.size() == bytes.size()),
      limits_(limits),
      most_bytes_(std::min(
          limits.total_bytes,
          kMemoryAlways + kMemoryPerByte * std::min(limits.stored_bytes, bytes_.size()))),
      builder_(kRepeatedPerByte * bytes_.size() + kRepeatedAlways),
      caller_(builder_) {}

absl::StatusOr<Parsed> Interpreter::Run() {
  while (!stopped_) {
    opcode_at_ = at_;
    if (at_ == bytes_.size()) return CutOff();
    const auto opcode = static_cast<uint8_t>(bytes_[at_++]);
    CKPTD_RETURN_IF_ERROR((this->*kOperations[opcode])());
    if (++opcodes_ % kCheckedAtOnce == 0) CKPTD_RETURN_IF_ERROR(CheckCost());
  }
  CKPTD_RETURN_IF_ERROR(CheckCost());
  CKPTD_RETURN_IF_ERROR(builder_.MergeEqualKeys());
  Parsed out;
  out.document.root = PopTop();
  out.document.arena = builder_.TakeArena();
  out.document.persistent = builder_.TakePersistent();
  out.document.protocol = protocol_;
  out.bytes = at_;
  return out;
}

absl::Status Interpreter::CheckCost() const {
  if (builder_.values() > limits_.values) [[unlikely]] {
    return PastLimit("values", limits_.values);
  }
  const size_t pointers = stack_.capacity() + marks_.capacity() + memo_.size() * kMemoPart;
  const size_t cost = builder_.bytes() + sizeof(const Value*) * pointers +
                      kBytesOfFarMemo * far_memo_.size();
  if (cost > most_bytes_) [[unlikely]] {
    return PastLimit("bytes of memory for its values", most_bytes_);
  }
  return absl::OkStatus();
}

absl::Status Interpreter::Damaged(std::string_view why) const {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("its pickle is damaged at byte {}: {}; copy or download the file "
                               "again, or save it anew",
                               opcode_at_, why),
                   {{"offset", std::to_string(opcode_at_)}});
}

absl::Status Interpreter::PastLimit(std::string_view what, size_t limit) const {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("its pickle needs more than {} {} at byte {}, which no checkpoint "
                               "does; find out who wrote the file",
                               limit, what, opcode_at_),
                   {{"offset", std::to_string(opcode_at_)}});
}

absl::Status Interpreter::CutOff() const {
  if (!is_whole_) return PastLimit("bytes of pickle", bytes_.size());
  return Damaged(fmt::format("it ends after {} bytes, without its STOP", bytes_.size()));
}

absl::Status Interpreter::Unknown() {
  return Damaged(
      fmt::format("there is no opcode {:#04x}", static_cast<uint8_t>(bytes_[opcode_at_])));
}

absl::Status Interpreter::Unsupported() {
  const auto opcode = static_cast<uint8_t>(bytes_[opcode_at_]);
  const bool is_buffer = opcode == opcode::kNextBuffer || opcode == opcode::kReadonlyBuffer;
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("its pickle needs {} (opcode {:#04x} at byte {}), which no file has "
                               "with it; save it anew by torch.save",
                               is_buffer ? "buffers outside of it" : "a registry of extensions",
                               opcode, opcode_at_),
                   {{"offset", std::to_string(opcode_at_)}});
}

absl::Status Interpreter::Stop() {
  CKPTD_RETURN_IF_ERROR(Need(1));
  stopped_ = true;
  return absl::OkStatus();
}

absl::Status Interpreter::Proto() {
  uint8_t protocol = 0;
  CKPTD_RETURN_IF_ERROR(Read(protocol));
  if (protocol > kNewestProtocol) {
    return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                     fmt::format("its pickle is of protocol {}, at most {} is read; save it anew "
                                 "with pickle_protocol={}",
                                 protocol, kNewestProtocol, kNewestProtocol),
                     {{"offset", std::to_string(opcode_at_)}});
  }
  protocol_ = protocol;
  return absl::OkStatus();
}

// Frames say how much to read at once: nothing where all bytes are there.
absl::Status Interpreter::Frame() {
  uint64_t length = 0;
  CKPTD_RETURN_IF_ERROR(Read(length));
  return length > bytes_.size() - at_ ? CutOff() : absl::OkStatus();
}

absl::Status Interpreter::TooFew(size_t count) const {
  return Damaged(fmt::format("its opcode needs {} {}, {} {} there", count,
                             count == 1 ? "value" : "values", Height(),
                             Height() == 1 ? "is" : "are"));
}

const Value* Interpreter::PopTop() {
  const Value* const value = stack_.back();
  stack_.pop_back();
  return value;
}

absl::Status Interpreter::Group(Items& out) const {
  if (marks_.empty()) return Damaged("its opcode ends what no MARK began");
  out = Items(stack_).subspan(floor_);
  return absl::OkStatus();
}

void Interpreter::EndGroup() {
  stack_.resize(floor_);
  marks_.pop_back();
  floor_ = marks_.empty() ? 0 : marks_.back();
}

absl::Status Interpreter::Mark() {
  if (marks_.size() >= limits_.depth) return PastLimit("levels", limits_.depth);
  marks_.push_back(stack_.size());
  floor_ = stack_.size();
  return absl::OkStatus();
}

// Without a value above the mark it takes the mark, as Python's does.
absl::Status Interpreter::Pop() {
  if (Height() == 0 && !marks_.empty()) {
    EndGroup();
    return absl::OkStatus();
  }
  CKPTD_RETURN_IF_ERROR(Need(1));
  PopTop();
  return absl::OkStatus();
}

absl::Status Interpreter::PopMark() {
  Items ignored;
  CKPTD_RETURN_IF_ERROR(Group(ignored));
  EndGroup();
  return absl::OkStatus();
}

absl::Status Interpreter::Duplicate() {
  CKPTD_RETURN_IF_ERROR(Need(1));
  Push(&Top());
  return absl::OkStatus();
}

absl::Status Interpreter::Remember(uint64_t index, const Value* value) {
  const uint64_t part = index / kMemoPart;
  if (part == memo_.size() && index < at_ + kMemoGap) {
    memo_.push_back(std::make_unique<std::array<const Value*, kMemoPart>>());
  }
  const Value*& place = part < memo_.size() ? (*memo_[part])[index % kMemoPart] : far_memo_[index];
  if (place == nullptr && ++remembered_ > limits_.memo) {
    return PastLimit("values in its memo", limits_.memo);
  }
  place = value;
  return absl::OkStatus();
}

absl::Status Interpreter::Recall(uint64_t index) {
  const uint64_t part = index / kMemoPart;
  const Value* value = part < memo_.size() ? (*memo_[part])[index % kMemoPart] : nullptr;
  if (value == nullptr) [[unlikely]] {
    const auto found = far_memo_.find(index);
    if (found == far_memo_.end()) {
      return Damaged(
          fmt::format("it takes number {} of its memo, which it never put there", index));
    }
    value = found->second;
  }
  Push(value);
  return absl::OkStatus();
}

absl::Status Interpreter::GetLine() {
  uint64_t index = 0;
  CKPTD_RETURN_IF_ERROR(TakeIndex(index));
  return Recall(index);
}

template <typename Index>
absl::Status Interpreter::Get() {
  Index index = 0;
  CKPTD_RETURN_IF_ERROR(Read(index));
  return Recall(index);
}

absl::Status Interpreter::PutLine() {
  uint64_t index = 0;
  CKPTD_RETURN_IF_ERROR(TakeIndex(index));
  CKPTD_RETURN_IF_ERROR(Need(1));
  return Remember(index, &Top());
}

template <typename Index>
absl::Status Interpreter::Put() {
  Index index = 0;
  CKPTD_RETURN_IF_ERROR(Read(index));
  CKPTD_RETURN_IF_ERROR(Need(1));
  return Remember(index, &Top());
}

absl::Status Interpreter::Memoize() {
  CKPTD_RETURN_IF_ERROR(Need(1));
  return Remember(remembered_, &Top());
}

template absl::Status Interpreter::Get<uint8_t>();
template absl::Status Interpreter::Get<uint32_t>();
template absl::Status Interpreter::Put<uint8_t>();
template absl::Status Interpreter::Put<uint32_t>();

}  // namespace ckptd::pickle
