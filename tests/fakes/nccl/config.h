// What the fake NCCL does, from the text file that CKPTD_FAKE_NCCL names (its keys are in
// README.md).
#ifndef CKPTD_TESTS_FAKES_NCCL_CONFIG_H_
#define CKPTD_TESTS_FAKES_NCCL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ckptd::fake_nccl {

// One `fault = FUNCTION key=value ...` line.
struct Fault {
  std::string function;
  std::string role;                  // only in processes of this role; empty: in all
  std::optional<std::uint64_t> nth;  // only this call (from 1); none: every call
  std::optional<int> rank;           // only on this rank; none: on all
  std::optional<int> error;          // answered instead of doing anything
  std::optional<int> late;           // the communicator's error, once the work has begun
  std::uint64_t after_bytes = 0;     // how many of the operation move before `late` or `die`
  std::uint64_t delay_ms = 0;        // before the call does its work
  bool hang = false;                 // the work begins and never ends
  bool die = false;                  // SIGKILL to oneself
};

struct Config {
  int version;                              // what ncclGetVersion says
  bool deaths_seen = false;                 // a peer's end is an error, as on a network
  std::uint64_t link_bytes_per_second = 0;  // what one communicator sends; 0: no limit
  std::uint64_t connect_ms = 1000;          // how long nobody may listen at the id's address
  std::string interface;                    // where TCP goes; empty: abstract sockets
  std::string trace;                        // file; empty: none
  std::vector<Fault> faults;                // those of this process's role
};

// Read once per process. Not to be understood: says so on stderr and ends the process, for
// nothing that a test then sees would mean anything.
const Config& config();

// The fault that hits this call of `function`, if any; counts the call. Thread-safe.
const Fault* NextFault(const char* function, int rank);

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_FAKES_NCCL_CONFIG_H_
