#include "common/source/torch/storage_id.h"

#include <charconv>

namespace ckptd::torch {
namespace {

using pickle::Items;
using pickle::Kind;
using pickle::Value;

// Takes `prefix` from the front of `text`.
bool Take(std::string_view prefix, std::string_view& text) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Takes what stands before the next quote, and the quote.
std::string_view TakeQuoted(std::string_view& text) {
  const size_t end = text.find('\'');
  if (end == std::string_view::npos) return {};
  const std::string_view out = text.substr(0, end);
  text.remove_prefix(end + 1);
  return out;
}

// ('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 6)
std::optional<StorageId> ParseText(std::string_view text) {
  StorageId out;
  if (!Take("('storage', <class '", text)) return std::nullopt;
  out.symbol = TakeQuoted(text);
  if (!Take(">, '", text)) return std::nullopt;
  out.key = TakeQuoted(text);
  if (!Take(", '", text)) return std::nullopt;
  TakeQuoted(text);  // the location
  if (!Take(", ", text)) return std::nullopt;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), out.elements);
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (error != std::errc() || (text != ")" && text != ", None)")) return std::nullopt;
  return out;
}

}  // namespace

std::optional<uint64_t> SizeOf(const Value& value) {
  if (!value.is(Kind::kInt) || value.integer() < 0) return std::nullopt;
  return static_cast<uint64_t>(value.integer());
}

std::optional<StorageId> StorageIdOf(const Value& persistent) {
  if (!persistent.is(Kind::kPersistent)) return std::nullopt;
  const Value& id = *persistent.items()[0];
  if (id.is(Kind::kText)) return ParseText(id.text());
  const Items items = id.is(Kind::kTuple) ? id.items() : Items();
  if (items.size() < 5 || !items[0]->IsText("storage") || !items[1]->is(Kind::kSymbol) ||
      !items[2]->is(Kind::kText)) {
    return std::nullopt;
  }
  const std::optional<uint64_t> elements = SizeOf(*items[4]);
  if (!elements.has_value()) return std::nullopt;
  StorageId out = {items[1]->text(), items[2]->text(), *elements};
  if (items.size() > 5 && !items[5]->is(Kind::kNone)) out.part = items[5];
  return out;
}

}  // namespace ckptd::torch
