// One link of a communicator: offers, answers, and the bytes.
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/fakes/cuda/trace.h"
#include "tests/fakes/nccl/engine.h"

namespace ckptd::fake_nccl {
namespace {

constexpr std::size_t kChunk = std::size_t{64} << 10;

}  // namespace

void Engine::Put(Link& link, const Frame& frame) {
  link.out.append(reinterpret_cast<const char*>(&frame), sizeof frame);
}

void Engine::Progress(Link& link) {
  Receive(link);
  if (!link.dead) Match(link);
  if (!link.dead) Send(link);
}

// Offers the first send, and answers the offer for the first receive.
void Engine::Match(Link& link) {
  if (!link.sends.empty() && !link.sends.front().offered) {
    Transfer& send = link.sends.front();
    send.offered = true;
    if (!Fails(send)) {
      Put(link, {kOffer, static_cast<std::uint32_t>(send.kind), send.bytes, 0, 0});
    }
  }
  if (!Pending(link)) return;
  Transfer& receive = link.receives.front();
  if (link.offer->kind != static_cast<std::uint32_t>(receive.kind)) {
    fake_cuda::TraceViolation("ranks differ in the order of broadcasts and sends");
    receive.stuck = true;
  } else if (link.offer->bytes != receive.bytes) {
    fake_cuda::TraceViolation("a send and its receive differ in their bytes");
    receive.stuck = true;
  } else if (!Fails(receive)) {
    link.offer.reset();
    receive.going = true;
    Put(link, {kGo, 0, 0, 0, 0});
    if (receive.bytes == 0) Moved(link.receives, 0);
  }
}

// Whether Match would find something to do.
bool Engine::Pending(const Link& link) {
  const bool offers = !link.sends.empty() && !link.sends.front().offered;
  const bool answers = link.offer && !link.receives.empty() && !link.receives.front().going &&
                       !link.receives.front().stuck;
  return offers || answers;
}

// Whether the scripted fault of the operation strikes now.
bool Engine::Fails(Transfer& transfer) {
  const Fault* fault = transfer.fault;
  const bool strikes = fault != nullptr && transfer.moved >= fault->after_bytes;
  if (!strikes || !(fault->hang || fault->late || fault->die)) return false;
  if (fault->die) ::kill(::getpid(), SIGKILL);
  if (fault->late && !transfer.stuck) report_(static_cast<ncclResult_t>(*fault->late));
  transfer.stuck = true;
  return true;
}

// The first of the queue has gone on by so many bytes.
void Engine::Moved(std::deque<Transfer>& queue, std::size_t bytes) {
  Transfer& first = queue.front();
  first.moved += bytes;
  if (Fails(first) || first.moved < first.bytes) return;
  --first.launch->left;
  queue.pop_front();
}

void Engine::Handle(Link& link, const Frame& frame, const char* payload) {
  switch (frame.type) {
    case kOffer:
      link.offer = frame;
      break;
    case kGo:
      link.sends.front().going = true;
      if (link.sends.front().bytes == 0) Moved(link.sends, 0);
      break;
    case kData: {
      Transfer& first = link.receives.front();
      std::memcpy(first.at + first.moved, payload, frame.bytes);
      Moved(link.receives, frame.bytes);
      break;
    }
    case kCollective:
      CheckCollective(frame.index, {frame.bytes, frame.root});
      break;
    default:
      link.bye = true;
  }
}

void Engine::Receive(Link& link) {
  char chunk[kChunk];
  const ssize_t n = ::recv(link.fd.get(), chunk, sizeof chunk, 0);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return Lose(link);
  if (n < 0) return;
  link.in.append(chunk, static_cast<std::size_t>(n));
  std::size_t at = 0;
  while (link.in.size() - at >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, link.in.data() + at, sizeof frame);
    const std::size_t payload = frame.type == kData ? frame.bytes : 0;
    if (link.in.size() - at < sizeof frame + payload) break;
    Handle(link, frame, link.in.data() + at + sizeof frame);
    at += sizeof frame + payload;
    Match(link);
  }
  link.in.erase(0, at);
}

void Engine::Send(Link& link) {
  const std::uint64_t rate = config().link_bytes_per_second;
  if (link.out.empty() && !link.sends.empty() && Clock::now() >= link_free_) {
    Transfer& first = link.sends.front();
    const std::size_t bytes = std::min(kChunk - sizeof(Frame), first.bytes - first.moved);
    if (first.going && !first.stuck && bytes > 0) {
      Put(link, {kData, 0, bytes, 0, 0});
      link.out.append(first.at + first.moved, bytes);
      if (rate != 0) {
        link_free_ = Clock::now() + std::chrono::nanoseconds(bytes * 1'000'000'000 / rate);
      }
      Moved(link.sends, bytes);
    }
  }
  if (link.out.empty()) return;
  const ssize_t n = ::send(link.fd.get(), link.out.data(), link.out.size(), MSG_NOSIGNAL);
  if (n < 0 && errno != EAGAIN && errno != EINTR) return Lose(link);
  if (n > 0) link.out.erase(0, static_cast<std::size_t>(n));
}

// The other rank is gone. On NVLink nobody notices: reference, section 4.3.
void Engine::Lose(Link& link) {
  link.dead = true;
  link.fd.Reset();
  if (!link.bye && config().deaths_seen) report_(ncclRemoteError);
}

}  // namespace ckptd::fake_nccl
