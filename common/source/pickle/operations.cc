// Which opcode does what.
#include <cstdint>

#include "common/source/pickle/interpreter.h"
#include "common/source/pickle/opcodes.h"

namespace ckptd::pickle {

using I = Interpreter;

constinit const Interpreter::Row Interpreter::kRows[] = {
    {opcode::kStop, &I::Stop},
    {opcode::kProto, &I::Proto},
    {opcode::kFrame, &I::Frame},
    {opcode::kMark, &I::Mark},
    {opcode::kPop, &I::Pop},
    {opcode::kPopMark, &I::PopMark},
    {opcode::kDup, &I::Duplicate},
    {opcode::kGet, &I::GetLine},
    {opcode::kBinGet, &I::Get<uint8_t>},
    {opcode::kLongBinGet, &I::Get<uint32_t>},
    {opcode::kPut, &I::PutLine},
    {opcode::kBinPut, &I::Put<uint8_t>},
    {opcode::kLongBinPut, &I::Put<uint32_t>},
    {opcode::kMemoize, &I::Memoize},

    {opcode::kNone, &I::None},
    {opcode::kNewTrue, &I::Bool<true>},
    {opcode::kNewFalse, &I::Bool<false>},
    {opcode::kInt, &I::IntLine},
    {opcode::kBinInt, &I::Int<int32_t>},
    {opcode::kBinInt1, &I::Int<uint8_t>},
    {opcode::kBinInt2, &I::Int<uint16_t>},
    {opcode::kLong, &I::LongLine},
    {opcode::kLong1, &I::Long<uint8_t>},
    {opcode::kLong4, &I::Long<int32_t>},
    {opcode::kFloat, &I::FloatLine},
    {opcode::kBinFloat, &I::Float},
    {opcode::kUnicode, &I::TextLine},
    {opcode::kShortBinUnicode, &I::Text<uint8_t>},
    {opcode::kBinUnicode, &I::Text<uint32_t>},
    {opcode::kBinUnicode8, &I::Text<uint64_t>},
    {opcode::kString, &I::StringLine},
    {opcode::kShortBinString, &I::String<uint8_t>},
    {opcode::kBinString, &I::String<int32_t>},
    {opcode::kShortBinBytes, &I::Bytes<uint8_t>},
    {opcode::kBinBytes, &I::Bytes<uint32_t>},
    {opcode::kBinBytes8, &I::Bytes<uint64_t>},
    {opcode::kByteArray8, &I::Bytes<uint64_t>},

    {opcode::kEmptyTuple, &I::EmptyTuple},
    {opcode::kTuple, &I::Tuple},
    {opcode::kTuple1, &I::TupleOf<1>},
    {opcode::kTuple2, &I::TupleOf<2>},
    {opcode::kTuple3, &I::TupleOf<3>},
    {opcode::kEmptyList, &I::EmptyList},
    {opcode::kList, &I::List},
    {opcode::kAppend, &I::Append},
    {opcode::kAppends, &I::Appends},
    {opcode::kEmptyDict, &I::EmptyDict},
    {opcode::kDict, &I::Dict},
    {opcode::kSetItem, &I::SetItem},
    {opcode::kSetItems, &I::SetItems},
    {opcode::kEmptySet, &I::EmptySet},
    {opcode::kAddItems, &I::AddItems},
    {opcode::kFrozenSet, &I::FrozenSet},

    {opcode::kGlobal, &I::Global},
    {opcode::kStackGlobal, &I::StackGlobal},
    {opcode::kReduce, &I::Reduce},
    {opcode::kBuild, &I::Build},
    {opcode::kInst, &I::Inst},
    {opcode::kObj, &I::Obj},
    {opcode::kNewObj, &I::NewObj},
    {opcode::kNewObjEx, &I::NewObjEx},
    {opcode::kPersId, &I::PersistentLine},
    {opcode::kBinPersId, &I::Persistent},

    {opcode::kExt1, &I::Unsupported},
    {opcode::kExt2, &I::Unsupported},
    {opcode::kExt4, &I::Unsupported},
    {opcode::kNextBuffer, &I::Unsupported},
    {opcode::kReadonlyBuffer, &I::Unsupported},
};

const std::array<Interpreter::Operation, 256> Interpreter::kOperations = [] {
  std::array<Operation, 256> all;
  all.fill(&Interpreter::Unknown);
  for (const Row& row : kRows) all[row.opcode] = row.operation;
  return all;
}();

}  // namespace ckptd::pickle
