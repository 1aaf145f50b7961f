// Exits with 0 when the client library is linked and says what it should.
#include <ckptd/admin.h>
#include <ckptd/client.h>
#include <ckptd/reasons.h>
#include <ckptd/status.h>

#include <iostream>

int main() {
  ckptd::ConnectOptions options;
  options.address.argument = "/nonexistent/rank-0.sock";
  const absl::Status status = ckptd::Client::Connect(options).status();
  std::cout << status << '\n';
  const bool admin_too = ckptd::AdminClient::Connect(options).status().code() == status.code();
  return admin_too && ckptd::ReasonOf(status) == ckptd::reason::kDaemonUnreachable ? 0 : 1;
}
