// Files of torch before 1.6: five pickles one behind the other (a magic number, a version, facts
// about the machine, the object, the keys of its storages), then the storages in the order of their
// keys, each with the number of its elements in front. The order follows torch's own _legacy_load.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/checked_math.h"
#include "common/base/digest.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/source/text.h"
#include "common/source/torch/dtypes.h"
#include "common/source/torch/read_file.h"
#include "common/source/torch/storage_id.h"
#include "common/source/zip/nearby_reads.h"

namespace ckptd::torch {
namespace {

using pickle::Kind;
using pickle::Value;

// The magic number 0x1950a86a20f9469cfc6c as binary pickles hold it, and as text.
constexpr std::string_view kMagicBytes = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr std::string_view kMagicDigits = "119547037146038801333356";
constexpr size_t kMagicWithin = 40;  // bytes from the begin of a file
constexpr int kVersion = 1001;
constexpr size_t kFirstRead = 256 << 10;
constexpr size_t kCountBytes = 8;

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Reads pickles one behind the other, as much of the file as they need.
class Pickles {
 public:
  explicit Pickles(const zip::ObjectPart& part) : part_(part) {}

  absl::StatusOr<pickle::Document> Next() {
    for (size_t room = kFirstRead;; room *= 4) {
      CKPTD_RETURN_IF_ERROR(Fetch(room));
      const std::span<const std::byte> rest = std::span<const std::byte>(bytes_).subspan(at_);
      pickle::Limits limits;
      const bool is_whole = begin_ + bytes_.size() == part_.bytes || room > limits.pickle_bytes;
      // A pickle that needs what is not here yet passes a limit, and is tried again.
      if (!is_whole) limits.pickle_bytes = std::min(limits.pickle_bytes, rest.size() - 1);
      absl::StatusOr<pickle::Parsed> parsed = ParsePickle(part_, rest, limits);
      if (!parsed.ok() && !is_whole && absl::IsInvalidArgument(parsed.status())) continue;
      if (!parsed.ok()) return parsed.status();
      hash_.Update(rest.first(parsed->bytes));
      at_ += parsed->bytes;
      return std::move(parsed->document);
    }
  }

  // Where the next one would begin.
  uint64_t offset() const { return begin_ + at_; }
  // The hash of all pickles so far.
  uint64_t hash() const { return hash_.Value(); }

 private:
  // Has `room` bytes from the next pickle on, or all that there are.
  absl::Status Fetch(size_t room) {
    const uint64_t left = part_.bytes - offset();
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(room, left));
    const size_t have = bytes_.size() - at_;
    if (have >= wanted) return absl::OkStatus();
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(at_));
    begin_ += std::exchange(at_, 0);
    bytes_.resize(wanted);
    return part_.ReadAt(begin_ + have, std::span(bytes_).subspan(have));
  }

  const zip::ObjectPart& part_;
  std::vector<std::byte> bytes_;
  uint64_t begin_ = 0;  // of bytes_ in the part
  size_t at_ = 0;       // of the next pickle in bytes_
  Xxh3Stream hash_;
};

// The size of a storage, as persistent ids give it.
struct Described {
  uint64_t elements = 0;
  uint64_t element_bytes = 0;
};
using Descriptions = std::map<std::string, Described, std::less<>>;

// A part of a storage: torch knows it by a key of its own.
struct View {
  std::string_view of;  // the key of the storage
  uint64_t first = 0;
  uint64_t elements = 0;
  bool operator==(const View&) const = default;
};
using Views = std::map<std::string, View, std::less<>>;

// Bytes of an element of a storage, also where tensors in it are not read.
std::optional<uint64_t> ElementBytesOf(std::string_view symbol) {
  if (const auto dtype = DtypeOfStorage(symbol); dtype.has_value()) return BitsOf(*dtype) / 8;
  if (symbol == "torch.QInt32Storage") return 4;
  for (const std::string_view other : {"QInt8", "QUInt8", "QUInt4x2", "QUInt2x4"}) {
    if (symbol == fmt::format("torch.{}Storage", other)) return 1;
  }
  return std::nullopt;
}

absl::Status AddView(const zip::ObjectPart& part, const StorageId& id, Views& out) {
  const pickle::Items items = id.part->items();
  const auto first = items.size() == 3 ? SizeOf(*items[1]) : std::nullopt;
  const auto elements = items.size() == 3 ? SizeOf(*items[2]) : std::nullopt;
  if (!first.has_value() || !elements.has_value() || !items[0]->is(Kind::kText)) {
    return part.Invalid("its pickle describes a part of a storage that is none; save it again");
  }
  const View view = {id.key, *first, *elements};
  if (out.try_emplace(std::string(items[0]->text()), view).first->second == view) {
    return absl::OkStatus();
  }
  return part.Invalid("its pickle has two parts of storages by one key, and torch reads one for "
                      "both; save it again");
}

// All storages that the pickle asks for.
absl::StatusOr<Descriptions> DescribeAll(const zip::ObjectPart& part,
                                         const pickle::Document& document) {
  Descriptions out;
  Views views;
  for (const Value* const value : document.persistent) {
    const std::optional<StorageId> id = StorageIdOf(*value);
    if (!id.has_value()) continue;  // the source of a module
    const std::optional<uint64_t> element_bytes = ElementBytesOf(id->symbol);
    if (!element_bytes.has_value()) {
      return part.Unsupported(
          "it holds a storage of a dtype that is not read, so where the others lie is not known; save it "
          "again with a new torch");
    }
    const Described described = {id->elements, *element_bytes};
    const auto [at, is_new] = out.emplace(id->key, described);
    if (!is_new && at->second.elements != described.elements) {
      return part.Invalid("its pickle describes a storage in two ways; save it again");
    }
    if (id->part != nullptr) CKPTD_RETURN_IF_ERROR(AddView(part, *id, views));
  }
  for (const auto& [key, view] : views) {
    if (!out.contains(key)) continue;
    return part.Invalid("its pickle has a storage and a part of one by one key; save it again");
  }
  return out;
}

// The storages in the order of `keys`, the first one at `offset`.
class StorageTable {
 public:
  StorageTable(const zip::ObjectPart& part, const Descriptions& described)
      : part_(part), described_(described) {}

  absl::Status Place(const Value& keys, uint64_t offset) {
    if (!keys.is(Kind::kList)) return part_.Invalid("its list of storages is none; save it again");
    for (const Value* key : keys.items()) {
      const auto found = described_.find(key->text());
      if (!key->is(Kind::kText) || found == described_.end()) {
        return part_.Invalid("it lists a storage that nothing in it describes; save it again");
      }
      const auto bytes = CheckedMultiply(found->second.elements, found->second.element_bytes);
      const uint64_t begin = offset + kCountBytes;
      if (!bytes.has_value() || begin > part_.bytes || *bytes > part_.bytes - begin) {
        return part_.Invalid("it ends before its storages do: it was cut short; finish the "
                             "download or copy");
      }
      counts_.push_back({offset, found->second.elements});
      storages_[std::string(key->text())] = {part_.begin + begin, *bytes, false};
      offset = begin + *bytes;
    }
    return absl::OkStatus();
  }

  // Holds the numbers of elements in the file against what persistent ids say, and sets in which
  // byte order they are. torch reads the lowest byte first, whatever machine wrote the file.
  absl::Status CheckCounts(bool& big_endian) {
    std::vector<uint64_t> offsets;
    for (const Count& count : counts_) offsets.push_back(count.offset);
    zip::NearbyReads reads(part_, offsets, kCountBytes);
    bool is_little = true;
    bool is_big = true;
    for (const Count& count : counts_) {
      CKPTD_ASSIGN_OR_RETURN(const auto bytes, reads.Get(count.offset, kCountBytes));
      const auto number = zip::LittleAt<uint64_t>(bytes, 0);
      is_little = is_little && number == count.elements;
      is_big = is_big && __builtin_bswap64(number) == count.elements;
    }
    if (!is_little && !is_big) {
      return part_.Invalid("its storages have other lengths than its pickle says; save or copy it "
                           "again");
    }
    big_endian = !is_little;
    return absl::OkStatus();
  }

  std::map<std::string, StorageBytes, std::less<>> Take() { return std::move(storages_); }

 private:
  struct Count {
    uint64_t offset = 0;
    uint64_t elements = 0;
  };

  const zip::ObjectPart& part_;
  const Descriptions& described_;
  std::vector<Count> counts_;
  std::map<std::string, StorageBytes, std::less<>> storages_;
};

absl::Status CheckPreamble(const zip::ObjectPart& part, Pickles& pickles) {
  CKPTD_ASSIGN_OR_RETURN(const pickle::Document magic, pickles.Next());
  if (magic.root->text() != kMagicDigits) {
    return part.Unsupported("it is a pickle of something else than torch.save; name the checkpoint "
                            "itself, or save it by torch.save");
  }
  CKPTD_ASSIGN_OR_RETURN(const pickle::Document version, pickles.Next());
  if (version.root->integer() != kVersion) {
    return part.Unsupported(fmt::format("its file format is of version {}, only {} is read; save "
                                        "it again with a new torch",
                                        version.root->integer(), kVersion));
  }
  return pickles.Next().status();  // of the machine: torch does not heed it
}

}  // namespace

bool BeginsAsLegacy(std::span<const std::byte> head) {
  const std::string_view text = TextOf(head.first(std::min(head.size(), kMagicWithin)));
  return text.find(kMagicBytes) != std::string_view::npos ||
         text.find(kMagicDigits) != std::string_view::npos;
}

absl::StatusOr<File> ReadLegacy(const zip::ObjectPart& part) {
  Pickles pickles(part);
  CKPTD_RETURN_IF_ERROR(CheckPreamble(part, pickles));
  File out;
  out.file = part.object->identity();
  out.form = "legacy";
  CKPTD_ASSIGN_OR_RETURN(out.document, pickles.Next());
  CKPTD_ASSIGN_OR_RETURN(const pickle::Document keys, pickles.Next());
  out.file.header_hash = pickles.hash();
  out.pickle_bytes = pickles.offset();
  CKPTD_RETURN_IF_ERROR(CheckStorages(part, out.document));
  CKPTD_ASSIGN_OR_RETURN(const Descriptions described, DescribeAll(part, out.document));
  StorageTable table(part, described);
  CKPTD_RETURN_IF_ERROR(table.Place(*keys.root, pickles.offset()));
  CKPTD_RETURN_IF_ERROR(table.CheckCounts(out.big_endian));
  out.storages = table.Take();
  return out;
}

}  // namespace ckptd::torch
