#include "common/source/manifest.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "common/base/at_once.h"
#include "common/base/digest.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "common/source/path_text.h"
#include "common/source/piece_reader.h"
#include "common/source/registry.h"

namespace ckptd {
namespace {

constexpr unsigned kMostThreads = 16;

// Digests of the pieces of an index, read by several threads in the order of the files.
class DigestReader {
 public:
  explicit DigestReader(const CheckpointIndex& index) : index_(index) {
    for (const TensorEntry& tensor : index.tensors) {
      for (const Piece& piece : tensor.pieces) order_.push_back({order_.size(), &tensor, &piece});
    }
    digests_.resize(order_.size());
    std::sort(order_.begin(), order_.end(), [](const Part& a, const Part& b) {
      return std::pair(a.piece->file, a.piece->offset) < std::pair(b.piece->file, b.piece->offset);
    });
  }

  // Tensor by tensor, piece by piece.
  absl::StatusOr<std::vector<uint64_t>> Run(unsigned threads) {
    AtOnce(std::max(threads, 1U), threads, [this](size_t) { Read(); });
    MutexLock lock(mutex_);
    CKPTD_RETURN_IF_ERROR(error_);
    return std::move(digests_);
  }

 private:
  struct Part {
    size_t number = 0;
    const TensorEntry* tensor = nullptr;
    const Piece* piece = nullptr;
  };

  void Read() {
    std::vector<std::byte> block(kDigestBlockBytes);
    std::shared_ptr<const ReadableObject> object;
    uint32_t open = UINT32_MAX;
    while (!failed_) {
      const size_t at = next_++;
      if (at >= order_.size()) return;
      const Piece& piece = *order_[at].piece;
      absl::StatusOr<uint64_t> digest = uint64_t{0};
      if (open != piece.file) {
        auto opened = OpenObject(index_.files[piece.file].path);
        if (opened.ok()) {
          object = *std::move(opened);
          open = piece.file;
        } else {
          digest = opened.status();
        }
      }
      if (digest.ok()) digest = DigestOf(*object, order_[at], block);
      if (digest.ok()) {
        digests_[order_[at].number] = *digest;
      } else {
        failed_ = true;
        MutexLock lock(mutex_);
        if (error_.ok()) error_ = digest.status();
      }
    }
  }

  static absl::StatusOr<uint64_t> DigestOf(const ReadableObject& object, const Part& part,
                                           std::span<std::byte> block) {
    PieceReader reader(object, *part.piece, part.tensor->dtype);
    std::vector<uint64_t> blocks;
    size_t n = 0;
    do {
      CKPTD_ASSIGN_OR_RETURN(n, reader.Read(block));
      if (n > 0 || blocks.empty()) blocks.push_back(Xxh3(block.first(n)));
    } while (n == block.size());
    return CombineBlockDigests(blocks);
  }

  const CheckpointIndex& index_;
  std::vector<Part> order_;
  std::vector<uint64_t> digests_;  // each element has one writer
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

std::string FolderOf(const std::string& source) {
  std::error_code ignored;
  const std::filesystem::path path(source);
  return (std::filesystem::is_directory(path, ignored) ? path : path.parent_path()).string();
}

void AddFiles(const CheckpointIndex& index, Manifest& manifest) {
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> inside(index.files.size());
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    const std::vector<Piece>& pieces = index.tensors[i].pieces;
    for (size_t p = 0; p < pieces.size(); ++p) {
      inside[pieces[p].file].emplace_back(pieces[p].offset, manifest.tensors[i].pieces[p].digest);
    }
  }
  for (size_t i = 0; i < index.files.size(); ++i) {
    Manifest::File file;
    file.name = NameInManifest(index, index.files[i]);
    file.bytes = index.files[i].bytes;
    file.header = index.files[i].header_hash;
    // Tensors without bytes share their offset with another one: any fixed order will do.
    std::sort(inside[i].begin(), inside[i].end());
    std::vector<uint64_t> parts = {file.header};
    for (const auto& [offset, digest] : inside[i]) parts.push_back(digest);
    file.digest = CombineBlockDigests(parts);
    manifest.files.push_back(std::move(file));
  }
}

struct Located {
  const Manifest* manifest = nullptr;
  const Manifest::Tensor* tensor = nullptr;

  const std::string& FileOf(size_t piece) const {
    return manifest->files[tensor->pieces[piece].file].name;
  }
};

std::map<std::string, Located> ByName(const Manifest& manifest) {
  std::map<std::string, Located> out;
  for (const Manifest::Tensor& tensor : manifest.tensors) out[tensor.name] = {&manifest, &tensor};
  return out;
}

// Nothing when the tensor is the same.
void CompareTensor(const std::string& name, const Located& kept, const Located& now,
                   std::vector<ManifestDifference>& out) {
  const Manifest::Tensor& a = *kept.tensor;
  const Manifest::Tensor& b = *now.tensor;
  if (a.dtype != b.dtype || a.shape != b.shape) {
    out.push_back({name, now.FileOf(0), "its dtype or shape differs"});
    return;
  }
  if (a.pieces.size() != b.pieces.size()) {
    out.push_back({name, now.FileOf(0), "it is cut into other pieces"});
    return;
  }
  for (size_t i = 0; i < a.pieces.size(); ++i) {
    const std::string& file = now.FileOf(i);
    if (kept.FileOf(i) != file) {
      out.push_back({name, file, "it lies in another file"});
    } else if (a.pieces[i].digest != b.pieces[i].digest) {
      out.push_back({name, file, "its bytes differ"});
    } else {
      continue;
    }
    return;
  }
}

void CompareTensors(const Manifest& kept, const Manifest& now,
                    std::vector<ManifestDifference>& out) {
  const std::map<std::string, Located> before = ByName(kept);
  const std::map<std::string, Located> after = ByName(now);
  for (const auto& [name, was] : before) {
    const auto is = after.find(name);
    if (is == after.end()) {
      out.push_back({name, was.FileOf(0), "it is gone"});
    } else {
      CompareTensor(name, was, is->second, out);
    }
  }
  for (const auto& [name, is] : after) {
    if (before.count(name) == 0) out.push_back({name, is.FileOf(0), "it was not there"});
  }
}

// What no tensor shows: headers, and which files there are.
void CompareFiles(const Manifest& kept, const Manifest& now,
                  std::vector<ManifestDifference>& out) {
  std::set<std::string> named;
  for (const ManifestDifference& difference : out) named.insert(difference.file);
  std::map<std::string, const Manifest::File*> after;
  for (const Manifest::File& file : now.files) after[file.name] = &file;
  for (const Manifest::File& was : kept.files) {
    const auto is = after.find(was.name);
    if (is == after.end()) {
      out.push_back({"", was.name, "it does not belong to the source any more"});
      continue;
    }
    if (is->second->header != was.header) {
      out.push_back({"", was.name, "its header differs"});
    } else if (is->second->digest != was.digest && named.count(was.name) == 0) {
      out.push_back({"", was.name, "its digest differs"});
    }
    after.erase(is);
  }
  for (const auto& [name, file] : after) {
    out.push_back({"", name, "it did not belong to the source"});
  }
}

}  // namespace

std::string NameInManifest(const CheckpointIndex& index, const SourceFile& file) {
  return std::filesystem::path(file.path).lexically_relative(FolderOf(index.path())).string();
}

absl::StatusOr<Manifest> MakeManifest(const CheckpointIndex& index, unsigned threads) {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  DigestReader reader(index);
  CKPTD_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests,
                         reader.Run(std::min(threads == 0 ? kMostThreads : threads, cores)));
  CKPTD_RETURN_IF_ERROR(CheckUnchanged(index));
  Manifest manifest;
  manifest.source = TextOfPath(index.source);
  auto digest = digests.begin();
  for (const TensorEntry& entry : index.tensors) {
    Manifest::Tensor& tensor = manifest.tensors.emplace_back();
    tensor.name = entry.name;
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    for (const Piece& piece : entry.pieces) {
      tensor.bytes += piece.bytes;
      tensor.pieces.push_back({piece.file, *digest++});
    }
  }
  AddFiles(index, manifest);
  return manifest;
}

std::vector<ManifestDifference> Compare(const Manifest& kept, const Manifest& now) {
  Manifest was = kept;
  if (was.files.size() == 1 && now.files.size() == 1) was.files[0].name = now.files[0].name;
  std::vector<ManifestDifference> out;
  CompareTensors(was, now, out);
  CompareFiles(was, now, out);
  return out;
}

}  // namespace ckptd
