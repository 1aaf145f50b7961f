// The opcodes of pickles, as Python's module pickletools describes them.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_OPCODES_H_
#define CKPTD_COMMON_SOURCE_PICKLE_OPCODES_H_

#include <cstdint>

namespace ckptd::pickle {

inline constexpr int kNewestProtocol = 5;

namespace opcode {

inline constexpr uint8_t kMark = '(', kStop = '.', kPop = '0', kPopMark = '1', kDup = '2',
                         kProto = 0x80, kFrame = 0x95;
// Plain values; those of protocol 0 are lines of text.
inline constexpr uint8_t kNone = 'N', kNewTrue = 0x88, kNewFalse = 0x89;
inline constexpr uint8_t kInt = 'I', kBinInt = 'J', kBinInt1 = 'K', kBinInt2 = 'M', kLong = 'L',
                         kLong1 = 0x8a, kLong4 = 0x8b, kFloat = 'F', kBinFloat = 'G';
inline constexpr uint8_t kUnicode = 'V', kBinUnicode = 'X', kShortBinUnicode = 0x8c,
                         kBinUnicode8 = 0x8d;
inline constexpr uint8_t kString = 'S', kBinString = 'T', kShortBinString = 'U';
inline constexpr uint8_t kBinBytes = 'B', kShortBinBytes = 'C', kBinBytes8 = 0x8e,
                         kByteArray8 = 0x96, kNextBuffer = 0x97, kReadonlyBuffer = 0x98;
// Containers.
inline constexpr uint8_t kEmptyTuple = ')', kTuple = 't', kTuple1 = 0x85, kTuple2 = 0x86,
                         kTuple3 = 0x87;
inline constexpr uint8_t kEmptyList = ']', kList = 'l', kAppend = 'a', kAppends = 'e';
inline constexpr uint8_t kEmptyDict = '}', kDict = 'd', kSetItem = 's', kSetItems = 'u';
inline constexpr uint8_t kEmptySet = 0x8f, kAddItems = 0x90, kFrozenSet = 0x91;
// The memo.
inline constexpr uint8_t kGet = 'g', kBinGet = 'h', kLongBinGet = 'j', kPut = 'p', kBinPut = 'q',
                         kLongBinPut = 'r', kMemoize = 0x94;
// Classes, functions and what becomes of them.
inline constexpr uint8_t kGlobal = 'c', kStackGlobal = 0x93, kReduce = 'R', kBuild = 'b',
                         kInst = 'i', kObj = 'o', kNewObj = 0x81, kNewObjEx = 0x92;
inline constexpr uint8_t kExt1 = 0x82, kExt2 = 0x83, kExt4 = 0x84;
inline constexpr uint8_t kPersId = 'P', kBinPersId = 'Q';

}  // namespace opcode
}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_OPCODES_H_
