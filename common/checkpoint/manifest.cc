#include "common/checkpoint/manifest.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "common/base/at_once.h"
#include "common/base/digest.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "common/base/status.h"
#include "common/checkpoint/open.h"
#include "common/checkpoint/path_text.h"
#include "common/checkpoint/process_memory.h"

namespace ckptd {
namespace {

constexpr unsigned kMostThreads = 16;

// Digests of the tensors of an index, read by several threads in the order of the files.
class TensorReader {
 public:
  explicit TensorReader(const CheckpointIndex& index)
      : index_(index), order_(index.tensors.size()), digests_(index.tensors.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(), [&index](size_t a, size_t b) {
      const Piece& left = index.tensors[a].pieces.front();
      const Piece& right = index.tensors[b].pieces.front();
      return std::pair(left.file, left.offset) < std::pair(right.file, right.offset);
    });
  }

  absl::StatusOr<std::vector<uint64_t>> Run(unsigned threads) {
    AtOnce(std::max(threads, 1U), threads, [this](size_t) { Read(); });
    MutexLock lock(mutex_);
    CKPTD_RETURN_IF_ERROR(error_);
    return std::move(digests_);
  }

 private:
  void Read() {
    std::vector<std::byte> block(kDigestBlockBytes);
    OpenedFile file;
    uint32_t open = UINT32_MAX;
    while (!failed_) {
      const size_t at = next_++;
      if (at >= order_.size()) return;
      const Piece& piece = index_.tensors[order_[at]].pieces.front();
      absl::StatusOr<uint64_t> digest = uint64_t{0};
      if (open != piece.file) {
        auto opened = OpenSourceFile(index_.files[piece.file].path);
        if (opened.ok()) {
          file = *std::move(opened);
          open = piece.file;
        } else {
          digest = opened.status();
        }
      }
      if (digest.ok()) digest = DigestOf(file, piece, block);
      if (digest.ok()) {
        digests_[order_[at]] = *digest;
      } else {
        failed_ = true;
        MutexLock lock(mutex_);
        if (error_.ok()) error_ = digest.status();
      }
    }
  }

  // A tensor of a safetensors file lies in one piece.
  absl::StatusOr<uint64_t> DigestOf(const OpenedFile& file, const Piece& piece,
                                    std::span<std::byte> block) const {
    std::vector<uint64_t> blocks;
    uint64_t done = 0;
    do {
      const std::span<std::byte> part =
          block.first(static_cast<size_t>(std::min(piece.bytes - done, kDigestBlockBytes)));
      CKPTD_RETURN_IF_ERROR(
          file.Read(piece.offset + done, part, index_.files[piece.file].path));
      blocks.push_back(Xxh3(part));
      done += part.size();
    } while (done < piece.bytes);
    return CombineBlockDigests(blocks);
  }

  const CheckpointIndex& index_;
  std::vector<size_t> order_;
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
    const Piece& piece = index.tensors[i].pieces.front();
    inside[piece.file].emplace_back(piece.offset, manifest.tensors[i].digest);
  }
  for (size_t i = 0; i < index.files.size(); ++i) {
    Manifest::File file;
    file.name = NameInManifest(index, index.files[i]);
    file.bytes = index.files[i].bytes;
    file.header = index.files[i].header_hash;
    // Those without bytes share their offset with another one: any fixed order will do.
    std::sort(inside[i].begin(), inside[i].end());
    std::vector<uint64_t> parts = {file.header};
    for (const auto& [offset, digest] : inside[i]) parts.push_back(digest);
    file.digest = CombineBlockDigests(parts);
    manifest.files.push_back(std::move(file));
  }
}

struct Located {
  const Manifest::Tensor* tensor = nullptr;
  const std::string* file = nullptr;
};

std::map<std::string, Located> ByName(const Manifest& manifest) {
  std::map<std::string, Located> out;
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    out[tensor.name] = {&tensor, &manifest.files[tensor.file].name};
  }
  return out;
}

std::string_view WhatDiffers(const Located& kept, const Located& now) {
  const Manifest::Tensor& a = *kept.tensor;
  const Manifest::Tensor& b = *now.tensor;
  if (a.dtype != b.dtype || a.shape != b.shape) return "its dtype or shape differs";
  if (*kept.file != *now.file) return "it lies in another file";
  return a.digest != b.digest ? "its bytes differ" : "";
}

void CompareTensors(const Manifest& kept, const Manifest& now,
                    std::vector<ManifestDifference>& out) {
  const std::map<std::string, Located> before = ByName(kept);
  const std::map<std::string, Located> after = ByName(now);
  for (const auto& [name, was] : before) {
    const auto is = after.find(name);
    if (is == after.end()) {
      out.push_back({name, *was.file, "it is gone"});
    } else if (const std::string_view what = WhatDiffers(was, is->second); !what.empty()) {
      out.push_back({name, *is->second.file, std::string(what)});
    }
  }
  for (const auto& [name, is] : after) {
    if (before.count(name) == 0) out.push_back({name, *is.file, "it was not there"});
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
  return std::filesystem::path(file.path).lexically_relative(FolderOf(index.source)).string();
}

absl::StatusOr<Manifest> MakeManifest(const CheckpointIndex& index, unsigned threads) {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  TensorReader reader(index);
  CKPTD_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests,
                         reader.Run(std::min(threads == 0 ? kMostThreads : threads, cores)));
  CKPTD_RETURN_IF_ERROR(CheckUnchanged(index));
  Manifest manifest;
  manifest.source = TextOfPath(index.source);
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    const TensorEntry& entry = index.tensors[i];
    const Piece& piece = entry.pieces.front();
    manifest.tensors.push_back(
        {entry.name, entry.dtype, entry.shape, piece.bytes, piece.file, digests[i]});
  }
  AddFiles(index, manifest);
  return manifest;
}

std::vector<ManifestDifference> Compare(const Manifest& kept, const Manifest& now) {
  std::vector<ManifestDifference> out;
  CompareTensors(kept, now, out);
  CompareFiles(kept, now, out);
  return out;
}

}  // namespace ckptd
