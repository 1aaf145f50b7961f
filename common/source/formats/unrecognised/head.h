// Findings about files that are no checkpoints, by how they begin. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_HEAD_H_
#define CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_HEAD_H_

#include <optional>
#include <string>
#include <string_view>

namespace ckptd::unrecognised {

// Parts of a sentence: "it is ...; ...".
struct Finding {
  std::string what;
  std::string advice;
  bool is_damage = false;  // else a file of another kind
};

// Text that came in place of a checkpoint: pointers, pages, messages; `head` are the first bytes.
std::optional<Finding> FindText(std::string_view head);

// Files of other programs.
std::optional<Finding> FindForeign(std::string_view head);

}  // namespace ckptd::unrecognised

#endif  // CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_HEAD_H_
