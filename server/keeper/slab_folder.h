// A memory-backed folder as a store: an entry is files, which outlive all processes of this machine
// (or all containers of a pod). File NAME#0 of an entry holds its record, those that follow are
// further names of the files in which its memory lies ("/" of the name is "~" there). Without its
// record an entry does not count. Connections cannot be kept here.
#ifndef CKPTD_SERVER_KEEPER_SLAB_FOLDER_H_
#define CKPTD_SERVER_KEEPER_SLAB_FOLDER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "server/keeper/descriptor_store.h"

namespace ckptd {

class SlabFolder final : public DescriptorStore {
 public:
  // Locks `folder`: two processes that adopt the same memory would write over each other's shards.
  // Removes files that belong to no entry, such as free memory of a process that was killed. Errors:
  // FailedPrecondition CONFIG_INVALID if another process, or another store of this one, has it; the
  // system's.
  static absl::StatusOr<std::unique_ptr<SlabFolder>> Open(std::string folder);

  absl::StatusOr<StoredEntries> Entries() override;
  void Put(const std::string& name, std::vector<UniqueFd> fds) override;
  void Remove(const std::string& name) override;
  std::string endpoint() const override { return folder_; }
  bool connected() const override { return true; }

 private:
  SlabFolder(std::string folder, UniqueFd lock)
      : folder_(std::move(folder)), lock_(std::move(lock)) {}
  absl::StatusOr<std::vector<UniqueFd>> OpenEntry(const std::string& name, size_t files) const;
  std::string PathOf(const std::string& name, size_t index) const;
  absl::Status PutNow(const std::string& name, const std::vector<UniqueFd>& fds) const;
  void RemoveNow(const std::string& name) const;

  const std::string folder_;
  const UniqueFd lock_;  // the folder, locked until this process ends
  Mutex mutex_;  // one caller changes files at a time
};

// Puts into both, and has what either has; `first` counts where both have an entry. A folder comes
// before a keeper: what that has was opened by another container, where files cannot be linked.
class TwoStores final : public DescriptorStore {
 public:
  TwoStores(std::unique_ptr<DescriptorStore> first, std::unique_ptr<DescriptorStore> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  absl::StatusOr<StoredEntries> Entries() override;
  void Put(const std::string& name, std::vector<UniqueFd> fds) override;
  void Remove(const std::string& name) override;
  std::string endpoint() const override;
  bool connected() const override { return first_->connected() && second_->connected(); }

 private:
  const std::unique_ptr<DescriptorStore> first_;
  const std::unique_ptr<DescriptorStore> second_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_KEEPER_SLAB_FOLDER_H_
