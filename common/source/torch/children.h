// The children of values of pickles, by their names. Only flatten.cc uses this.
#ifndef CKPTD_COMMON_SOURCE_TORCH_CHILDREN_H_
#define CKPTD_COMMON_SOURCE_TORCH_CHILDREN_H_

#include <cstddef>
#include <string>
#include <vector>

#include "common/source/index.h"
#include "common/source/pickle/value.h"

namespace ckptd::torch {

struct Child {
  std::string name;
  const pickle::Value* value = nullptr;
  EntryKind kind = EntryKind::kParameter;
  const pickle::Value* key = nullptr;  // of an entry
};

// Adds the values in a container or a record, in the order of the file. A module that was saved
// whole has its parameters, buffers and modules, as its state_dict() has them. Takes what they cost,
// in bytes of memory, from `budget`. False: that is too little, and some are missing.
bool ChildrenOf(const pickle::Value& value, size_t& budget, std::vector<Child>& children);

// "module.Name" of what a record was to build: of a subclass of Tensor the subclass.
std::string NameOfRecord(const pickle::Value& record);

// The name of an object outside of the pickle: the class of a storage, or "persistent id".
std::string NameOfPersistent(const pickle::Value& value);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_TORCH_CHILDREN_H_
