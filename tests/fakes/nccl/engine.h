// What a communicator's kernels do: one thread per communicator moves the bytes of the launches
// whose turn has come in their streams, over the links to the other ranks.
#ifndef CKPTD_TESTS_FAKES_NCCL_ENGINE_H_
#define CKPTD_TESTS_FAKES_NCCL_ENGINE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "tests/fakes/nccl/config.h"
#include "tests/fakes/nccl/cuda.h"
#include "tests/fakes/nccl/nccl_api.h"
#include "tests/fakes/nccl/wire.h"

namespace ckptd::fake_nccl {

enum class OpKind : std::uint32_t { kSend, kReceive, kBroadcast };

struct Op {
  OpKind kind = OpKind::kSend;
  const char* from = nullptr;
  char* to = nullptr;
  std::size_t bytes = 0;
  int peer = 0;  // a broadcast's root
  CUstream stream = nullptr;
  const Fault* fault = nullptr;
};

// The operations of a group on one communicator: one kernel.
struct Launch {
  std::vector<Op> ops;
  void* ticket = nullptr;  // of the driver; set when it has begun
  std::size_t left = 0;    // transfers that are not done
};

// Rules of the links. An operation between two ranks is the same one on both sides if it has the
// same place among those of this direction; then kind and size must agree, or neither side ever
// ends. A sender ends no earlier than the receiver has begun: nothing is buffered, so programs
// that count on that stand still. Thread-safe.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // `report` gets errors, and ncclSuccess when Close is through; from the engine's thread.
  Engine(int rank, std::vector<UniqueFd> links, std::function<void(ncclResult_t)> report);
  void Start();

  // A launch was queued; it comes by Begin, or never (Forget: its context is lost).
  void Expect();
  void Begin(std::unique_ptr<Launch> launch, void* ticket);
  void Forget();

  // Tells the other ranks that no more will come, once nothing is expected; ends when all of them
  // have said so.
  void Close();
  // Ends at once what has begun, as it is, and whatever begins later. Returns when no byte moves
  // any more.
  void Abort();

 private:
  struct Transfer {
    char* at = nullptr;
    std::size_t bytes = 0;
    std::size_t moved = 0;
    OpKind kind = OpKind::kSend;  // kSend for both sides, or kBroadcast
    const Fault* fault = nullptr;
    Launch* launch = nullptr;
    bool offered = false;
    bool going = false;
    bool stuck = false;
  };
  enum Type : std::uint32_t { kOffer = 1, kGo, kData, kCollective, kBye };
  struct Frame {
    std::uint32_t type = 0;
    std::uint32_t kind = 0;
    std::uint64_t bytes = 0;
    std::uint64_t index = 0;
    std::int64_t root = 0;
  };
  struct Link {
    UniqueFd fd;
    std::deque<Transfer> sends;     // not done, in order
    std::deque<Transfer> receives;  // likewise
    std::optional<Frame> offer;     // for the first of `receives`, which may come later
    std::string out;                // bytes on their way
    std::string in;
    bool bye = false;
    bool dead = false;
  };
  struct Collective {
    std::uint64_t bytes = 0;
    std::int64_t root = 0;
  };

  void Loop();
  // False: the thread's work is over.
  bool Turn(std::vector<std::unique_ptr<Launch>> begun, bool aborted, bool closing);
  void Activate(std::unique_ptr<Launch> launch);
  void AddBroadcast(const Op& op, Launch* launch);
  void AddTransfer(std::deque<Transfer>& to, Transfer transfer);
  void CheckCollective(std::uint64_t index, const Collective& one);
  void Progress(Link& link);
  void Match(Link& link);
  void Handle(Link& link, const Frame& frame, const char* payload);
  void Moved(std::deque<Transfer>& queue, std::size_t bytes);
  bool Fails(Transfer& transfer);
  static bool Pending(const Link& link);
  void Receive(Link& link);
  void Send(Link& link);
  void Lose(Link& link);
  void Wait();
  void FinishDone(bool all);
  bool SayBye();
  void Wake() const;
  static void Put(Link& link, const Frame& frame);

  const int rank_;
  const std::function<void(ncclResult_t)> report_;
  UniqueFd wake_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Launch>> begun_ ABSL_GUARDED_BY(mutex_);
  std::size_t expected_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  bool still_ ABSL_GUARDED_BY(mutex_) = false;  // nothing moves any more

  // The thread's own.
  std::vector<Link> links_;
  std::vector<std::unique_ptr<Launch>> active_;
  std::uint64_t collectives_ = 0;
  std::map<std::uint64_t, Collective> mine_;
  std::map<std::uint64_t, std::vector<Collective>> theirs_;  // of those that are not mine yet
  bool said_bye_ = false;
  Clock::time_point link_free_{};
};

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_FAKES_NCCL_ENGINE_H_
