// Tensors as a tree of the modules that their dotted names spell.
#ifndef CKPTD_CLIENT_CLI_TENSOR_TREE_H_
#define CKPTD_CLIENT_CLI_TENSOR_TREE_H_

#include <ostream>

#include "common/source/index.h"

namespace ckptd::cli {

// Prints one line for each module and tensor, with the number of tensors and the bytes below it.
// Numbered neighbours that hold the same tensors share a line ("0 to 31"), below which are those of
// each of them. A module shares the line of the only one in it.
void PrintTree(const CheckpointIndex& index, std::ostream& out);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_TENSOR_TREE_H_
