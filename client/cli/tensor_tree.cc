#include "client/cli/tensor_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/offline.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "common/base/digest.h"

namespace ckptd::cli {
namespace {

// Names come from files: what is behind so many dots stays one name, and is no tree.
constexpr size_t kMostLevels = 64;

struct Node {
  std::string name;
  const TensorEntry* tensor = nullptr;  // null: a module
  std::vector<std::unique_ptr<Node>> children;
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t likeness = 0;  // equal for nodes with the same tensors below, whatever they are called
};

std::vector<std::string_view> PartsOf(std::string_view name) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < kMostLevels) {
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) break;
    parts.push_back(name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  parts.push_back(name);
  return parts;
}

Node& ChildOf(Node& node, std::string_view name) {
  // Tensors are sorted by name, so that all of one module follow each other.
  if (node.children.empty() || node.children.back()->name != name ||
      node.children.back()->tensor != nullptr) {
    node.children.push_back(std::make_unique<Node>());
    node.children.back()->name = name;
  }
  return *node.children.back();
}

void Add(const TensorEntry& tensor, Node& root) {
  const std::vector<std::string_view> parts = PartsOf(tensor.name);
  Node* at = &root;
  for (size_t i = 0; i + 1 < parts.size(); ++i) at = &ChildOf(*at, parts[i]);
  auto leaf = std::make_unique<Node>();
  leaf->name = parts.back();
  leaf->tensor = &tensor;
  at->children.push_back(std::move(leaf));
}

std::optional<uint64_t> NumberOf(const std::string& name) {
  constexpr size_t kMostDigits = 18;
  const bool is_number = !name.empty() && name.size() <= kMostDigits &&
                         std::all_of(name.begin(), name.end(),
                                     [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? std::optional<uint64_t>(std::stoull(name)) : std::nullopt;
}

// Numbers as numbers, before all others, which stay in their order.
bool Before(const std::unique_ptr<Node>& a, const std::unique_ptr<Node>& b) {
  const auto x = NumberOf(a->name);
  const auto y = NumberOf(b->name);
  return x.has_value() && (!y.has_value() || *x < *y);
}

// At most kMostLevels deep.
void Count(Node& node) {
  std::string facts;
  if (node.tensor != nullptr) {
    node.tensors = 1;
    node.bytes = BytesOf(*node.tensor);
    facts = fmt::format("{} {}", NameOf(node.tensor->dtype), JoinShape(node.tensor->shape));
  }
  std::stable_sort(node.children.begin(), node.children.end(), Before);
  for (const auto& child : node.children) {
    Count(*child);
    node.tensors += child->tensors;
    node.bytes += child->bytes;
    facts += fmt::format("{} {} {};", child->name.size(), child->name, child->likeness);
  }
  node.likeness = Xxh3(facts);
}

// How many nodes from `first` on are numbered one after the other, and alike.
size_t AlikeFrom(const std::vector<std::unique_ptr<Node>>& nodes, size_t first) {
  const auto number = NumberOf(nodes[first]->name);
  size_t count = 1;
  while (number.has_value() && first + count < nodes.size() &&
         NumberOf(nodes[first + count]->name) == *number + count &&
         nodes[first + count]->likeness == nodes[first]->likeness) {
    ++count;
  }
  return count;
}

void AddRows(const Node& node, size_t level, Table& table) {
  for (size_t i = 0; i < node.children.size();) {
    const size_t alike = AlikeFrom(node.children, i);
    const Node* shown = node.children[i].get();
    std::string name = shown->name;
    if (alike > 1) name += " to " + node.children[i + alike - 1]->name;
    while (shown->tensor == nullptr && shown->children.size() == 1) {
      shown = shown->children.front().get();
      name += "." + shown->name;
    }
    const TensorEntry* const tensor = shown->tensor;
    table.AddRow({std::string(2 * level, ' ') + name, std::to_string(shown->tensors * alike),
                  HumanBytes(shown->bytes * alike),
                  tensor == nullptr ? "" : std::string(NameOf(tensor->dtype)),
                  tensor == nullptr ? "" : JoinShape(tensor->shape)});
    AddRows(*shown, level + 1, table);
    i += alike;
  }
}

}  // namespace

void PrintTree(const CheckpointIndex& index, std::ostream& out) {
  Node root;
  for (const TensorEntry& tensor : index.tensors) Add(tensor, root);
  Count(root);
  Table table({{"NAME"},
               {"TENSORS", Table::Align::kRight},
               {"SIZE", Table::Align::kRight},
               {"DTYPE"},
               {"SHAPE"}});
  AddRows(root, 0, table);
  table.Print(out);
}

}  // namespace ckptd::cli
