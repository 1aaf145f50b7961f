#include "common/source/passed_files.h"

#include <algorithm>
#include <utility>

namespace ckptd {
namespace {

// Calls use(rest) for each path of `files` below `folder`, without that and its slash.
template <typename Use>
void ForAllBelow(const PassedFiles::Files& files, const std::string& folder, Use use) {
  const std::string prefix = folder == "/" ? folder : folder + "/";
  const auto is_below = [&](auto at) { return at != files.end() && at->first.starts_with(prefix); };
  for (auto at = files.lower_bound(prefix); is_below(at); ++at) {
    use(at->first.substr(prefix.size()));
  }
}

}  // namespace

std::shared_ptr<const void> PassedFiles::Add(const Owner& owner, Files files) {
  auto added = std::make_shared<const Files>(std::move(files));
  {
    MutexLock lock(mutex_);
    passes_[owner].push_front(added);
  }
  const auto remove = [this, owner, added](const void*) { Remove(owner, added); };
  return std::shared_ptr<const void>(added.get(), remove);
}

// `files` closes its descriptors, if it is the last to have them, after the lock.
void PassedFiles::Remove(const Owner& owner, const std::shared_ptr<const Files>& files) {
  MutexLock lock(mutex_);
  const auto at = passes_.find(owner);
  at->second.remove(files);
  if (at->second.empty()) passes_.erase(at);
}

PassedFiles::Descriptor PassedFiles::Find(const Owner& owner, const std::string& path) const {
  MutexLock lock(mutex_);
  const auto passes = passes_.find(owner);
  if (passes == passes_.end()) return nullptr;
  for (const auto& files : passes->second) {
    if (const auto at = files->find(path); at != files->end()) return at->second;
  }
  return nullptr;
}

std::vector<std::string> PassedFiles::List(const Owner& owner, const std::string& folder) const {
  std::vector<std::string> names;
  MutexLock lock(mutex_);
  const auto passes = passes_.find(owner);
  if (passes == passes_.end()) return names;
  for (const auto& files : passes->second) {
    ForAllBelow(*files, folder, [&names](std::string rest) {
      names.push_back(rest.substr(0, rest.find('/')));
    });
    // An older pass may be of a folder as it was.
    if (!names.empty()) break;
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

bool PassedFiles::Has(const Owner& owner, const std::string& path) const {
  return Find(owner, path) != nullptr || !List(owner, path).empty();
}

size_t PassedFiles::count() const {
  MutexLock lock(mutex_);
  size_t all = 0;
  for (const auto& [owner, passes] : passes_) {
    for (const auto& files : passes) all += files->size();
  }
  return all;
}

}  // namespace ckptd
