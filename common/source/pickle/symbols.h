// Names of classes and functions in pickles: how Python 3 spells them, and which of them the
// interpreter knows. Pure.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_SYMBOLS_H_
#define CKPTD_COMMON_SOURCE_PICKLE_SYMBOLS_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace ckptd::pickle {

enum class Meaning : uint8_t {
  kUnknown,  // a call of it is a record
  kExecutes,
  kCallsArguments,  // such as map(): executes if what it is given does
  // Pure constructors.
  kOrderedDict,
  kSet,
  kBytes,
  kComplex,
  kEncode,
  kSize,
  kNumpyScalar,
  // Functions by which pickles say how to build an object of a class.
  kGetattr,
  kReconstructor,
  kNewObj,
  kNewObjEx,
};

// "module.Name"; of pickles of a protocol before 3, as Python 3 calls what Python 2 wrote.
std::string SymbolName(std::string_view module, std::string_view name, int protocol);

// The meaning of a call of "module.Name". A module that executes is meant too where another module
// only has it as a name ("torch.serialization.os", whose attribute "system" a pickle can reach).
Meaning MeaningOf(std::string_view symbol);

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_SYMBOLS_H_
