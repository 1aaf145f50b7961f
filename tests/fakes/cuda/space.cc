#include "tests/fakes/cuda/space.h"

#include <sys/mman.h>

#include <algorithm>

namespace ckptd::fake_cuda {
namespace {

constexpr std::size_t kMaxRange = std::size_t{1} << 46;  // sums with addresses stay in range
constexpr int kHidden = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// The entry of an ordered map of ranges that holds `address`.
template <typename Map>
const typename Map::value_type* Holding(const Map& ranges, Address address) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return nullptr;
  const auto& found = *std::prev(after);
  return address - found.first < found.second.bytes ? &found : nullptr;
}

}  // namespace

Address Space::Reserve(std::size_t bytes, std::size_t alignment, Address hint) {
  auto freed = freed_.upper_bound(hint);
  if (hint != 0 && freed != freed_.begin()) {
    const auto [first, end] = *std::prev(freed);
    if (hint % alignment == 0 && hint + bytes <= end && hint < end) {
      freed_.erase(first);
      if (first < hint) freed_[first] = hint;
      if (hint + bytes < end) freed_[hint + bytes] = end;
      return hint;
    }
  }
  void* raw = ::mmap(nullptr, bytes + alignment, PROT_NONE, kHidden, -1, 0);
  if (raw == MAP_FAILED) return 0;
  const auto start = reinterpret_cast<Address>(raw);
  const Address aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) ::munmap(raw, aligned - start);
  const Address end = start + bytes + alignment;
  if (end > aligned + bytes) {
    ::munmap(reinterpret_cast<void*>(aligned + bytes), end - aligned - bytes);
  }
  return aligned;
}

void Space::Retire(Address address, std::size_t bytes) {
  ::mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, kHidden | MAP_FIXED, -1, 0);
  freed_[address] = address + bytes;
}

bool Space::WasFreed(Address address) const {
  auto after = freed_.upper_bound(address);
  return after != freed_.begin() && address < std::prev(after)->second;
}

bool Space::Show(const Memory& memory, Address address, std::size_t bytes, int protection) {
  return ::mmap(reinterpret_cast<void*>(address), bytes, protection, MAP_SHARED | MAP_FIXED,
                memory.fd, 0) != MAP_FAILED;
}

const std::pair<const Address, Block>* Space::BlockAt(Address address) const {
  return Holding(blocks, address);
}

const std::pair<const Address, Mapping>* Space::MappingAt(Address address) const {
  return Holding(mappings, address);
}

bool Space::Pinned(Address address, std::size_t bytes) const {
  const auto* block = BlockAt(address);
  return block != nullptr && block->second.memory == nullptr &&
         bytes <= block->second.bytes - (address - block->first);
}

bool Space::OnDevice(Address address) const {
  const auto* block = BlockAt(address);
  return (block != nullptr && block->second.memory != nullptr) || MappingAt(address) != nullptr;
}

Reach Space::Check(Address address, std::size_t bytes, int device, bool write) const {
  if (bytes > kMaxRange) return Reach::kUnknown;
  if (const auto* block = BlockAt(address)) {
    if (bytes > block->second.bytes - (address - block->first)) return Reach::kUnknown;
    return write && block->second.read_only ? Reach::kFault : Reach::kGood;
  }
  if (!AllMapped(address, bytes)) return Reach::kUnknown;
  const CUmemAccess_flags needed =
      write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  for (Address at = address; at < address + bytes;) {
    const auto* mapping = MappingAt(at);
    const auto granted = mapping->second.access[static_cast<std::size_t>(device)];
    if ((granted & needed) != needed) return Reach::kFault;
    at = mapping->first + mapping->second.bytes;
  }
  return Reach::kGood;
}

bool Space::AnyMapped(Address address, std::size_t bytes) const {
  if (MappingAt(address) != nullptr) return true;
  const auto next = mappings.lower_bound(address);
  return next != mappings.end() && next->first < address + bytes;
}

bool Space::AllMapped(Address address, std::size_t bytes) const {
  Address at = address;
  do {
    const auto* mapping = MappingAt(at);
    if (mapping == nullptr) return false;
    at = mapping->first + mapping->second.bytes;
  } while (at < address + bytes);
  return true;
}

}  // namespace ckptd::fake_cuda
