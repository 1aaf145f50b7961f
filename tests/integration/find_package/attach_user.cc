// Exits with 0 when the attach library is linked and says what it should.
#include <ckptd/attach.h>
#include <ckptd/reasons.h>
#include <ckptd/status.h>

#include <iostream>

int main() {
  ckptd::AttachRequest request;
  request.fd_socket = "/nonexistent/fd.sock";
  request.token = "0123456789abcdef0123456789abcdef";
  const absl::Status status = ckptd::Attach(request).status();
  std::cout << status << '\n';
  return ckptd::ReasonOf(status) == ckptd::reason::kDaemonUnreachable ? 0 : 1;
}
