// Reading a mapping of a file that someone cuts meanwhile raises SIGBUS. These functions turn the
// signal into a return value, for our mappings only.
#ifndef CKPTD_SERVER_TRANSFER_SIGBUS_GUARD_H_
#define CKPTD_SERVER_TRANSFER_SIGBUS_GUARD_H_

#include <cstddef>
#include <span>

#include "absl/functional/function_ref.h"

namespace ckptd {

// Installs the process-wide SIGBUS handler (once) and tells whether it is in force. Signals
// outside of a guarded range go to the handler found before. False if someone has since installed
// another handler: then mappings must not be read. Thread-safe.
bool SigbusGuardInForce();

// Unblocks SIGBUS in this thread, whatever mask it inherited. The kernel kills a process whose
// thread faults with the signal blocked.
void UnblockSigbus();

// Runs `body`, which may read `mapped`. Returns false if a read failed because the file's bytes
// are gone. `body` was then abandoned by longjmp. So while it reads, `body` and its callees must
// hold no lock and no object with a destructor, and the output must be allowed to be incomplete.
// Not nestable.
bool RunGuarded(std::span<const std::byte> mapped, absl::FunctionRef<void()> body);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_SIGBUS_GUARD_H_
