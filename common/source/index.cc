#include "common/source/index.h"

#include <algorithm>
#include <span>
#include <vector>

#include "common/base/digest.h"

namespace ckptd {

uint64_t ElementCount(const Shape& shape) {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  return count;
}

std::string_view NameOf(EntryKind kind) {
  switch (kind) {
    case EntryKind::kBuffer:
      return "buffer";
    case EntryKind::kOptimizer:
      return "optimizer";
    case EntryKind::kObject:
      return "object";
    case EntryKind::kParameter:
      break;
  }
  return "parameter";
}

Signs SignsOf(const TensorEntry& tensor) {
  if (!IsComplex(tensor.dtype)) return tensor.negates_real ? Signs::kBoth : Signs::kNone;
  return static_cast<Signs>((tensor.negates_real ? 1 : 0) | (tensor.negates_imaginary ? 2 : 0));
}

const TensorEntry* CheckpointIndex::Find(const std::string& name) const {
  const auto alias = aliases.find(name);
  const std::string& wanted = alias == aliases.end() ? name : alias->second;
  const auto at = std::lower_bound(
      tensors.begin(), tensors.end(), wanted,
      [](const TensorEntry& tensor, const std::string& key) { return tensor.name < key; });
  return at != tensors.end() && at->name == wanted ? &*at : nullptr;
}

std::string CheckpointIndex::path() const {
  return part.empty() ? source : source.substr(0, source.size() - part.size() - 1);
}

uint64_t IdentityOf(const std::vector<SourceFile>& files) {
  std::vector<uint64_t> facts;
  for (const SourceFile& file : files) {
    facts.insert(facts.end(), {Xxh3(file.object), Xxh3(file.version), file.bytes,
                               static_cast<uint64_t>(file.mtime_ns), file.header_hash});
  }
  return Xxh3(std::as_bytes(std::span(facts)));
}

bool IsSameObject(const SourceFile& a, const SourceFile& b) {
  return a.host == b.host && a.object == b.object;
}

bool IsSameOrCopy(const SourceFile& a, const SourceFile& b) {
  return a.path == b.path && a.bytes == b.bytes && a.header_hash == b.header_hash &&
         a.mtime_ns == b.mtime_ns;
}

}  // namespace ckptd
