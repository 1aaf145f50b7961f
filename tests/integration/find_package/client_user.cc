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
#include <string>
#include <utility>
#include <vector>

namespace {

namespace v1 = ckptd::v1;

const std::map<std::string, v1::AttachMode> kModes = {
    {"shared", v1::ATTACH_MODE_SHARED},
    {"private", v1::ATTACH_MODE_PRIVATE},
    {"exclusive", v1::ATTACH_MODE_EXCLUSIVE}};
const std::map<std::string, v1::HandleKind> kKinds = {
    {"any", v1::HANDLE_KIND_UNSPECIFIED},
    {"vmm_fd", v1::HANDLE_KIND_VMM_FD},
    {"cuda_ipc", v1::HANDLE_KIND_CUDA_IPC}};

int SaysThatNoDaemonIsThere() {
  ckptd::ConnectOptions options;
  options.address.argument = "/nonexistent/rank-0.sock";
  const absl::Status status = ckptd::Client::Connect(options).status();
  std::cout << status << '\n';
  const bool admin_too = ckptd::AdminClient::Connect(options).status().code() == status.code();
  return admin_too && ckptd::ReasonOf(status) == ckptd::reason::kDaemonUnreachable ? 0 : 1;
}

// Of the user's program: everything up to the shard. The client ends with it.
absl::StatusOr<ckptd::Shard> Acquire(const v1::LoadSpec& spec) {
  auto client = ckptd::Client::Connect();
  if (!client.ok()) return client.status();
  const auto load = client->Load(spec);
  if (!load.ok()) return load.status();
  const auto done = client->Watch(load->checkpoint().name());
  if (!done.ok()) return done.status();
  if (const auto active = ckptd::CheckActive(*done); !active.ok()) return active;
  return client->Acquire(done->name(), {.mode = ckptd::AttachMode(spec.intended_mode())});
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
  v1::LoadSpec spec;
  spec.set_source(arguments[1]);
  spec.mutable_layout()->set_rules(arguments[2]);
  spec.set_intended_mode(kModes.at(arguments[3]));
  spec.set_handle_kind(kKinds.at(arguments[4]));
  auto shard = Acquire(spec);
  if (!shard.ok()) return Fail(shard.status());
  std::cout << ckptd::NameOf(shard->mode()) << " on " << shard->device_uuid() << ", copied "
            << shard->copied_bytes() << std::endl;
  std::string line;
  std::getline(std::cin, line);
  if (const auto written = Write(*shard, arguments[5]); !written.ok()) return Fail(written);
  return 0;  // the shard goes with main
}
