// systemd's side is played by a thread that does what sd_notify(3) says.
#include "server/keeper/systemd_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

ino_t InodeOf(const UniqueFd& fd) {
  struct stat info = {};
  ::fstat(fd.get(), &info);
  return info.st_ino;
}

class Systemd {
 public:
  Systemd() {
    address_.sun_family = AF_UNIX;
    std::memcpy(address_.sun_path, path_.c_str(), path_.size());
    EXPECT_EQ(::bind(socket_.get(), Address(), sizeof(address_)), 0);
    thread_ = std::thread([this] { Serve(); });
  }
  // Ends once all that was sent has been read.
  void Stop() {
    EXPECT_EQ(::sendto(socket_.get(), "end", 3, 0, Address(), sizeof(address_)), 3);
    thread_.join();
  }

  // Starts a unit: its environment, with what is stored at `first` and the descriptors after it.
  SystemdStore::Environment Start(int first) {
    std::string names;
    int next = first;
    for (const auto& [name, fd] : stored_) {
      EXPECT_EQ(::dup2(fd.get(), next), next);
      ++next;
      names += (names.empty() ? "" : ":") + name;
    }
    const std::map<std::string, std::string> variables = {{"NOTIFY_SOCKET", path_},
                                                          {"LISTEN_PID", std::to_string(::getpid())},
                                                          {"LISTEN_FDS", std::to_string(next - first)},
                                                          {"LISTEN_FDNAMES", names}};
    return [variables](const char* name) -> std::optional<std::string> {
      const auto at = variables.find(name);
      return at == variables.end() ? std::nullopt : std::optional(at->second);
    };
  }
  std::multimap<std::string, UniqueFd>& stored() { return stored_; }

 private:
  void Serve() {
    for (;;) {
      auto received = RecvWithFds(socket_.get(), 4096, 4,
                                  std::chrono::steady_clock::now() + std::chrono::seconds(60));
      if (!received.ok() || received->bytes.empty()) return;
      const std::string text(reinterpret_cast<const char*>(received->bytes.data()),
                             received->bytes.size());
      const std::string name = text.substr(std::min(text.size(), text.find("FDNAME=") + 7));
      if (text == "end") return;
      if (absl::StartsWith(text, "FDSTORE=1\n")) stored_.emplace(name, std::move(received->fds.at(0)));
      if (absl::StartsWith(text, "FDSTOREREMOVE=1\n")) stored_.erase(name);
    }
  }

  const sockaddr* Address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  TempFolder folder_;
  const std::string path_ = folder_.path() + "/notify";
  sockaddr_un address_ = {};
  const UniqueFd socket_{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  std::multimap<std::string, UniqueFd> stored_;
  std::thread thread_;
};

constexpr int kFirst = 700;  // free in this process

TEST(SystemdStore, TheNextProcessOfTheUnitHasTheEntriesInOrder) {
  Systemd systemd;
  std::vector<ino_t> inodes;
  {
    auto store = SystemdStore::Take(systemd.Start(kFirst), kFirst).value();
    std::vector<UniqueFd> fds;
    for (int i = 0; i < 12; ++i) fds.push_back(NewMemfd("test"));
    for (const UniqueFd& fd : fds) inodes.push_back(InodeOf(fd));
    store->Put("checkpoints/a", std::move(fds));
    std::vector<UniqueFd> other;
    other.push_back(NewMemfd("test"));
    store->Put("checkpoints/b", std::move(other));
    store->Remove("checkpoints/b");  // returns when systemd has read it
  }
  systemd.Stop();
  EXPECT_EQ(systemd.stored().size(), 12U);
  auto next = SystemdStore::Take(systemd.Start(kFirst), kFirst).value();
  ASSERT_OK_AND_ASSIGN(const StoredEntries entries, next->Entries());
  ASSERT_EQ(entries.size(), 1U);
  ASSERT_EQ(entries.at("checkpoints/a").size(), 12U);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(InodeOf(entries.at("checkpoints/a")[i]), inodes[i]);
  EXPECT_EQ(::fcntl(kFirst, F_GETFD), FD_CLOEXEC);
}

TEST(SystemdStore, AnEntryWhoseRecordWasNotSentDoesNotCount) {
  Systemd systemd;
  {
    auto store = SystemdStore::Take(systemd.Start(kFirst), kFirst).value();
    std::vector<UniqueFd> fds;
    for (int i = 0; i < 3; ++i) fds.push_back(NewMemfd("test"));
    store->Put("checkpoints/a", std::move(fds));
  }
  systemd.Stop();
  systemd.stored().erase("checkpoints/a#0");
  auto next = SystemdStore::Take(systemd.Start(kFirst), kFirst).value();
  EXPECT_TRUE(next->Entries().value().empty());
}

TEST(SystemdStore, OutsideOfAUnitIsAnErrorThatSaysWhatToDo) {
  const auto none = [](const char*) { return std::optional<std::string>(); };
  EXPECT_THAT(SystemdStore::Take(none),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
}

}  // namespace
}  // namespace ckptd
