// Reading a mapping of a file that someone cuts meanwhile raises SIGBUS. This
// turns the signal into a return value, for our mappings only.
#ifndef CKPTD_SERVER_TRANSFER_SIGBUS_GUARD_H_
#define CKPTD_SERVER_TRANSFER_SIGBUS_GUARD_H_

#include <cstddef>
#include <span>

#include "absl/functional/function_ref.h"

namespace ckptd {

// Installs the process-wide SIGBUS handler (once) and tells whether it is in
// force. Signals outside of a guarded range go on to the handler found before.
// False when someone has since put another handler in place: then mappings must
// not be read. Thread-safe.
bool SigbusGuardInForce();

// Lets this thread receive SIGBUS, whatever mask it inherited: the kernel kills
// a process whose thread faults with the signal blocked.
void UnblockSigbus();

// Runs `body`, which may read `mapped`. False if such a read failed because the
// file behind it is gone: `body` was then abandoned in the middle, by longjmp.
// So `body`, and what it calls while reading, must hold no object with a
// destructor, no lock, and be ready to lose what it was writing. Not nestable.
bool RunGuarded(std::span<const std::byte> mapped, absl::FunctionRef<void()> body);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_SIGBUS_GUARD_H_
