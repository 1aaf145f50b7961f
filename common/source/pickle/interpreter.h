// The machine that pickles are written for: a stack, marks on it and a memo. Used by Parse alone.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_INTERPRETER_H_
#define CKPTD_COMMON_SOURCE_PICKLE_INTERPRETER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/pickle/builder.h"
#include "common/source/pickle/caller.h"
#include "common/source/pickle/pickle.h"
#include "common/source/pickle/value.h"

namespace ckptd::pickle {

// Runs once. Not thread-safe.
class Interpreter {
 public:
  // `bytes` must stay until the end.
  Interpreter(std::string_view bytes, const Limits& limits);
  // Errors: those of Parse.
  absl::StatusOr<Parsed> Run();

 private:
  // One opcode: a byte, its operands in the bytes behind it, and what it does to the stack.
  using Operation = absl::Status (Interpreter::*)();
  struct Row {
    uint8_t opcode;
    Operation operation;
  };
  static const Row kRows[68];
  static const std::array<Operation, 256> kOperations;

  absl::Status Unknown();
  absl::Status Unsupported();
  absl::Status Stop();
  absl::Status Proto();
  absl::Status Frame();

  // The stack and the memo.
  absl::Status Mark();
  absl::Status Pop();
  absl::Status PopMark();
  absl::Status Duplicate();
  absl::Status GetLine();
  template <typename Index>
  absl::Status Get();
  absl::Status PutLine();
  template <typename Index>
  absl::Status Put();
  absl::Status Memoize();

  // Plain values.
  absl::Status None();
  template <bool kValue>
  absl::Status Bool();
  template <typename Integer>
  absl::Status Int();
  absl::Status IntLine();
  absl::Status LongLine();
  template <typename Length>
  absl::Status Long();
  absl::Status Float();
  absl::Status FloatLine();
  template <typename Length>
  absl::Status Text();
  absl::Status TextLine();
  // Values that Python 2 called texts.
  template <typename Length>
  absl::Status String();
  absl::Status StringLine();
  template <typename Length>
  absl::Status Bytes();

  // Containers.
  absl::Status EmptyTuple();
  template <size_t kSize>
  absl::Status TupleOf();
  absl::Status Tuple();
  absl::Status EmptyList();
  absl::Status List();
  absl::Status Append();
  absl::Status Appends();
  absl::Status EmptyDict();
  absl::Status Dict();
  absl::Status SetItem();
  absl::Status SetItems();
  absl::Status EmptySet();
  absl::Status FrozenSet();
  absl::Status AddItems();

  // Symbols, the calls that a pickle would have made of them, and persistent ids.
  absl::Status Global();
  absl::Status StackGlobal();
  absl::Status Reduce();
  absl::Status NewObj();
  absl::Status NewObjEx();
  absl::Status Inst();
  absl::Status Obj();
  absl::Status Build();
  absl::Status PersistentLine();
  absl::Status Persistent();

  // Errors of the opcode that is running.
  absl::Status Damaged(std::string_view why) const;
  absl::Status PastLimit(std::string_view what, size_t limit) const;
  absl::Status CutOff() const;
  // OK while what all values cost is within the limits. Their sum is bounded by the pickle's
  // length, so it need not be asked after each opcode.
  absl::Status CheckCost() const;

  // The bytes behind the opcode, as they lie there: little-endian, as every machine that this is
  // built for.
  template <typename Number>
  absl::Status Read(Number& out) {
    if (bytes_.size() - at_ < sizeof(out)) [[unlikely]]
      return CutOff();
    std::memcpy(&out, bytes_.data() + at_, sizeof(out));
    at_ += sizeof(out);
    return absl::OkStatus();
  }
  // As long as a text or a bytes object may be.
  absl::Status TakeBytes(uint64_t count, std::string_view& out);
  // Without its end.
  absl::Status TakeLine(std::string_view& out);
  absl::Status TakeIndex(uint64_t& out);

  // The stack above the last mark. References and spans last until the next Push.
  size_t Height() const { return stack_.size() - floor_; }
  void Push(const Value* value) { stack_.push_back(value); }
  absl::Status Need(size_t count) const {
    return Height() >= count ? absl::OkStatus() : TooFew(count);
  }
  absl::Status TooFew(size_t count) const;
  const Value& Top() const { return *stack_.back(); }
  // Pops one; there must be one.
  const Value* PopTop();
  // The values above the last mark; EndGroup takes them and the mark away.
  absl::Status Group(Items& out) const;
  void EndGroup();

  absl::Status Remember(uint64_t index, const Value* value);
  absl::Status Recall(uint64_t index);
  absl::Status PushText(std::string_view text);
  absl::Status PushString(std::string_view bytes);
  absl::Status PushSymbol(std::string_view module, std::string_view name);
  absl::Status PushDigits(std::string_view digits);
  absl::Status PushNumberLine(std::string_view line);
  // The container below the last mark, and what it is to get.
  absl::Status GroupFor(const Value*& container, Items& items) const;
  // Appends to a container of this kind, or to a record.
  absl::Status AppendTo(const Value& container, Items items, Kind kind);
  absl::Status AppendGroup(Kind kind);
  absl::Status PutInto(const Value& container, Items items);
  absl::Status PushCall(const Value* callee, Items arguments, const Value* keywords);

  const std::string_view bytes_;
  const bool is_whole_;  // or cut at a limit
  const Limits& limits_;
  const size_t most_bytes_;  // of memory
  Builder builder_;
  Caller caller_;
  size_t at_ = 0;         // behind what was read
  size_t opcode_at_ = 0;  // where the opcode that is running stands
  size_t opcodes_ = 0;
  int protocol_ = 0;
  bool stopped_ = false;
  std::vector<const Value*> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  size_t floor_ = 0;           // the last of them
  // Each part of the memo holds so many numbers, from 0 on.
  static constexpr size_t kMemoPart = 1024;
  std::vector<std::unique_ptr<std::array<const Value*, kMemoPart>>> memo_;
  // Numbers that lie far behind those that were used; picklers count from 0.
  std::map<uint64_t, const Value*> far_memo_;
  size_t remembered_ = 0;
};

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_INTERPRETER_H_
