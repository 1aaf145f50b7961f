#include "tests/fakes/nccl/engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/fakes/cuda/trace.h"

namespace ckptd::fake_nccl {
namespace {

constexpr int kIdleMs = 1000;

}  // namespace

Engine::Engine(int rank, std::vector<UniqueFd> links, std::function<void(ncclResult_t)> report)
    : rank_(rank), report_(std::move(report)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (UniqueFd& fd : links) {
    links_.emplace_back();
    links_.back().fd = std::move(fd);
    links_.back().dead = !links_.back().fd.valid();
    links_.back().bye = links_.back().dead;  // oneself
  }
}

void Engine::Start() {
  std::thread([self = shared_from_this()] { self->Loop(); }).detach();
}

void Engine::Wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Engine::Expect() {
  MutexLock lock(mutex_);
  ++expected_;
}

void Engine::Forget() {
  {
    MutexLock lock(mutex_);
    --expected_;
  }
  Wake();
}

void Engine::Begin(std::unique_ptr<Launch> launch, void* ticket) {
  launch->ticket = ticket;
  {
    MutexLock lock(mutex_);
    begun_.push_back(std::move(launch));
  }
  Wake();
}

void Engine::Close() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  Wake();
}

void Engine::Abort() {
  {
    MutexLock lock(mutex_);
    aborted_ = true;
  }
  Wake();
  MutexLock lock(mutex_);
  changed_.Wait(mutex_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return still_; });
}

void Engine::Loop() {
  while (true) {
    std::vector<std::unique_ptr<Launch>> begun;
    bool aborted = false;
    bool closing = false;
    bool last = false;
    {
      MutexLock lock(mutex_);
      begun.swap(begun_);
      aborted = aborted_;
      last = expected_ == 0;
      closing = closing_ && last;
    }
    const bool goes_on = Turn(std::move(begun), aborted, closing);
    if (aborted || !goes_on) {
      MutexLock lock(mutex_);
      still_ = true;
      changed_.NotifyAll();
    }
    // Aborted: launches that still wait in their streams shall end when their turn comes.
    if (!goes_on || (aborted && last)) return;
    Wait();
  }
}

bool Engine::Turn(std::vector<std::unique_ptr<Launch>> begun, bool aborted, bool closing) {
  for (std::unique_ptr<Launch>& launch : begun) {
    if (aborted) active_.push_back(std::move(launch));
    if (!aborted) Activate(std::move(launch));
  }
  if (aborted) {
    for (Link& link : links_) link.fd.Reset();
    FinishDone(/*all=*/true);
    return true;
  }
  for (Link& link : links_) {
    if (!link.dead) Progress(link);
  }
  FinishDone(/*all=*/false);
  return !closing || SayBye();
}

// False: everybody has said it, and the links are closed.
bool Engine::SayBye() {
  if (!std::exchange(said_bye_, true)) {
    for (Link& link : links_) {
      if (!link.dead) Put(link, {kBye, 0, 0, 0, 0});
    }
  }
  for (Link& link : links_) {
    if (!link.dead) Send(link);
    if (!link.bye || (!link.dead && !link.out.empty())) return true;
  }
  for (Link& link : links_) link.fd.Reset();
  report_(ncclSuccess);
  return false;
}

// Collectives first, and among themselves in order; then what is between two ranks. Sends to
// oneself go straight to their receives.
void Engine::Activate(std::unique_ptr<Launch> owned) {
  Launch* const launch = owned.get();
  active_.push_back(std::move(owned));
  std::deque<Op> own_sends;
  for (const Op& op : launch->ops) {
    if (op.kind == OpKind::kBroadcast) AddBroadcast(op, launch);
    if (op.kind == OpKind::kSend && op.peer == rank_) own_sends.push_back(op);
  }
  for (const Op& op : launch->ops) {
    if (op.kind == OpKind::kBroadcast) continue;
    if (op.peer != rank_) {
      Link& link = links_[static_cast<std::size_t>(op.peer)];
      const bool out = op.kind == OpKind::kSend;
      char* const at = out ? const_cast<char*>(op.from) : op.to;
      AddTransfer(out ? link.sends : link.receives,
                  {at, op.bytes, 0, OpKind::kSend, op.fault, launch});
    } else if (op.kind == OpKind::kReceive) {
      std::memmove(op.to, own_sends.front().from, std::min(op.bytes, own_sends.front().bytes));
      own_sends.pop_front();
    }
  }
}

void Engine::AddBroadcast(const Op& op, Launch* launch) {
  const std::uint64_t index = collectives_++;
  const Collective mine{op.bytes, op.peer};
  mine_[index] = mine;
  for (const Collective& other : theirs_[index]) {
    if (other.bytes != mine.bytes || other.root != mine.root) CheckCollective(index, other);
  }
  theirs_.erase(index);
  for (Link& link : links_) {
    if (!link.dead) Put(link, {kCollective, 0, op.bytes, index, op.peer});
  }
  if (op.peer != rank_) {
    Link& root = links_[static_cast<std::size_t>(op.peer)];
    AddTransfer(root.receives, {op.to, op.bytes, 0, OpKind::kBroadcast, op.fault, launch});
    return;
  }
  if (op.from != op.to) std::memmove(op.to, op.from, op.bytes);
  for (std::size_t rank = 0; rank < links_.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    AddTransfer(links_[rank].sends,
                {const_cast<char*>(op.from), op.bytes, 0, OpKind::kBroadcast, op.fault, launch});
  }
}

void Engine::AddTransfer(std::deque<Transfer>& to, Transfer transfer) {
  ++transfer.launch->left;
  to.push_back(transfer);
}

// Another rank's collective of this number.
void Engine::CheckCollective(std::uint64_t index, const Collective& other) {
  const auto mine = mine_.find(index);
  if (mine == mine_.end()) {
    theirs_[index].push_back(other);
  } else if (mine->second.bytes != other.bytes || mine->second.root != other.root) {
    fake_cuda::TraceViolation("ranks differ in root or size of a broadcast");
  }
}

void Engine::FinishDone(bool all) {
  for (auto launch = active_.begin(); launch != active_.end();) {
    if (!all && (*launch)->left > 0) {
      ++launch;
      continue;
    }
    void* const ticket = (*launch)->ticket;
    launch = active_.erase(launch);
    {
      MutexLock lock(mutex_);
      --expected_;
    }
    Wake();  // who looked before may have seen one more
    cuda()->FakeFinish(ticket, CUDA_SUCCESS);
  }
}

// Until there is something to do.
void Engine::Wait() {
  std::vector<pollfd> ready = {{wake_.get(), POLLIN, 0}};
  int timeout = kIdleMs;
  const bool slow = Clock::now() < link_free_;
  for (const Link& link : links_) {
    if (!link.fd.valid()) continue;
    const bool sends = !link.sends.empty() && link.sends.front().going && !link.sends.front().stuck;
    const bool out = !link.out.empty() || (sends && !slow);
    if (sends && slow) timeout = 1;
    if (Pending(link)) timeout = 0;
    ready.push_back({link.fd.get(), static_cast<short>(out ? POLLIN | POLLOUT : POLLIN), 0});
  }
  ::poll(ready.data(), ready.size(), timeout);
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t woken = ::read(wake_.get(), &count, sizeof count);
}

}  // namespace ckptd::fake_nccl
