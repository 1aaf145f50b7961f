// Views that have a name: rules for known families of models, as data (sets/*.json). Their numbers
// ("$num_key_value_heads") come behind the name. Pure; thread-safe.
#ifndef CKPTD_COMMON_PLAN_VIEW_SETS_H_
#define CKPTD_COMMON_PLAN_VIEW_SETS_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckptd::view {

struct NamedSet {
  std::string_view name;   // the file's, without .json
  std::string_view rules;  // the file
};
// Made of sets/*.json when this is built.
std::span<const NamedSet> Sets();

// Whether a text is the name of a set, known or not, and neither JSON nor a file's path.
bool IsName(std::string_view text);

// The JSON of "NAME" or "NAME:num_attention_heads=32,num_key_value_heads=8". Errors: InvalidArgument
// LAYOUT_INVALID for an unknown name or number, and where numbers lack.
absl::StatusOr<std::string> RulesOfSet(std::string_view text);

// `name` with the numbers that the text of a model's config.json has, if it has none of its own.
std::string WithConfig(std::string_view name, std::string_view config);

}  // namespace ckptd::view

#endif  // CKPTD_COMMON_PLAN_VIEW_SETS_H_
