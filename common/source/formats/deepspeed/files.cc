#include "common/source/formats/deepspeed/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "common/base/escape.h"
#include "common/source/text.h"

namespace ckptd::deepspeed {
namespace {

// Takes `prefix` from the beginning of `text`, if it is there.
bool Take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<uint32_t> TakeNumber(std::string_view& text) {
  constexpr size_t kMostDigits = 9;
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits > kMostDigits) return std::nullopt;
  uint32_t number = 0;
  for (const char c : text.substr(0, digits)) number = number * 10 + static_cast<uint32_t>(c - '0');
  text.remove_prefix(digits);
  return number;
}

// zero_pp_rank_R_mp_rank_M and mp_rank_M, of which `text` loses them.
struct Ranks {
  std::optional<uint32_t> data;
  uint32_t model = 0;
};
std::optional<Ranks> TakeRanks(std::string_view& text) {
  Ranks out;
  if (Take(text, "zero_pp_rank_")) {
    out.data = TakeNumber(text);
    if (!out.data.has_value() || !Take(text, "_")) return std::nullopt;
  }
  const auto model = Take(text, "mp_rank_") ? TakeNumber(text) : std::nullopt;
  if (!model.has_value()) return std::nullopt;
  out.model = *model;
  return out;
}

constexpr std::string_view kModelEnd = "_model_states.pt";

bool IsOptimizerEnd(std::string_view text) {
  // The latter is older.
  return text == "_optim_states.pt" || text == "optim_states.pt";
}

void AddFile(const std::string& name, StateFiles& out) {
  std::string_view text = name;
  const bool has_prefix = Take(text, "bf16_") || Take(text, "fp16_");
  const std::optional<Ranks> ranks = TakeRanks(text);
  if (!ranks.has_value()) {
    const bool is_expert = name.starts_with("expp_rank_") || name.find("expert_") != name.npos;
    const bool is_state = name.ends_with("model_states.pt") || name.ends_with("optim_states.pt");
    if (!is_state || (!is_expert && !name.starts_with("layer_"))) return;
    out.unsupported = (is_expert ? "it holds experts in files of their own, such as "
                                 : "it holds layers of a pipeline, such as ") +
                      Quoted(Escape(name));
    return;
  }
  const bool is_model = text == kModelEnd && !has_prefix;
  const bool is_optimizer = IsOptimizerEnd(text) && ranks->data.has_value();
  if (!is_model && !is_optimizer) return;
  if (ranks->model > 0) {
    out.unsupported = "it was saved with tensor parallelism, as " + name + " says";
  } else if (is_optimizer) {
    out.optimizers.emplace(*ranks->data, name);
  } else if (!out.models_by_rank || ranks->data.has_value()) {
    // Stage 3 has its own files beside one that an earlier save left.
    if (ranks->data.has_value() && !out.models_by_rank) out.models.clear();
    out.models_by_rank = ranks->data.has_value();
    out.models.emplace(ranks->data.value_or(0), name);
  }
}

std::vector<std::string> Missing(const RankFiles& files, uint32_t count, std::string_view prefix,
                                 std::string_view end) {
  std::vector<std::string> out;
  for (uint32_t rank = 0; rank < count; ++rank) {
    if (files.contains(rank)) continue;
    out.push_back(fmt::format("{}zero_pp_rank_{}_mp_rank_00{}", prefix, rank, end));
  }
  return out;
}

}  // namespace

StateFiles StateFilesOf(const std::vector<std::string>& names) {
  StateFiles out;
  for (const std::string& name : names) AddFile(name, out);
  out.is_universal = out.optimizers.empty() && !out.models.empty() &&
                     std::binary_search(names.begin(), names.end(), "zero");
  return out;
}

std::vector<std::string> MissingOptimizers(const StateFiles& files, uint32_t count) {
  const bool has_prefix =
      !files.optimizers.empty() && files.optimizers.begin()->second.starts_with("bf16_");
  return Missing(files.optimizers, count, has_prefix ? "bf16_" : "", "_optim_states.pt");
}

std::vector<std::string> MissingModels(const StateFiles& files, uint32_t count) {
  return Missing(files.models, count, "", kModelEnd);
}

}  // namespace ckptd::deepspeed
