// client_user: exits with 0 when the client library is linked and says what it should.
// client_user SOURCE LAYOUT MODE KIND FOLDER: acquires the shard of the daemon that CKPTD_ADDRESS
// names and prints what it got; after a line of its input it writes each tensor's bytes to FOLDER.
#include <ckptd/admin.h>
#include <ckptd/client.h>
#include <ckptd/reasons.h>
#include <ckptd/status.h>

#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

const std::map<std::string, ckptd::AttachMode> kModes = {
    {"shared", ckptd::AttachMode::kShared},
    {"private", ckptd::AttachMode::kPrivate},
    {"exclusive", ckptd::AttachMode::kExclusive}};
const std::map<std::string, std::optional<ckptd::HandleKind>> kKinds = {
    {"any", std::nullopt},
    {"vmm_fd", ckptd::HandleKind::kVmmFd},
    {"cuda_ipc", ckptd::HandleKind::kCudaIpc}};

int SaysThatNoDaemonIsThere() {
  ckptd::ConnectOptions options;
  options.address.argument = "/nonexistent/rank-0.sock";
  const absl::Status status = ckptd::Client::Connect(options).status();
  std::cout << status << '\n';
  const bool admin_too = ckptd::AdminClient::Connect(options).status().code() == status.code();
  return admin_too && ckptd::ReasonOf(status) == ckptd::reason::kDaemonUnreachable ? 0 : 1;
}

// Of the user's program: everything up to the shard. The client ends with it.
absl::StatusOr<ckptd::Shard> Acquire(const ckptd::LoadRequest& request) {
  auto client = ckptd::Client::Connect();
  if (!client.ok()) return client.status();
  const auto load = client->Load(request);
  if (!load.ok()) return load.status();
  const auto done = client->Watch(load->checkpoint.name);
  if (!done.ok()) return done.status();
  if (const auto active = ckptd::CheckActive(*done); !active.ok()) return active;
  return client->Acquire(done->name, {.mode = request.intended_mode});
}

absl::Status Write(const ckptd::Shard& shard, const std::string& folder) {
  for (const ckptd::ShardTensor& tensor : shard.tensors()) {
    std::vector<std::byte> bytes(tensor.bytes);
    if (const auto read = shard.Read(tensor, 0, bytes); !read.ok()) return read;
    std::ofstream(folder + "/" + tensor.name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
  }
  return absl::OkStatus();
}

int Fail(const absl::Status& status) {
  std::cout << ckptd::ReasonOf(status) << ": " << status.message() << std::endl;
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) return SaysThatNoDaemonIsThere();
  if (count != 6) return 2;
  ckptd::LoadRequest request;
  request.source = arguments[1];
  request.layout = std::string(arguments[2]);
  request.intended_mode = kModes.at(arguments[3]);
  request.handle_kind = kKinds.at(arguments[4]);
  auto shard = Acquire(request);
  if (!shard.ok()) return Fail(shard.status());
  std::cout << ckptd::NameOf(shard->mode()) << " on " << shard->device_uuid() << ", copied "
            << shard->copied_bytes() << std::endl;
  std::string line;
  std::getline(std::cin, line);
  if (const auto written = Write(*shard, arguments[5]); !written.ok()) return Fail(written);
  return 0;  // the shard goes with main
}
