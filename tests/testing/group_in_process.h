// The daemons of a group in one process: real catalogs and real host memory,
// linked by direct calls that a test can make fail.
#ifndef CKPTD_TESTS_TESTING_GROUP_IN_PROCESS_H_
#define CKPTD_TESTS_TESTING_GROUP_IN_PROCESS_H_

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/group/membership.h"
#include "server/load/local_link.h"
#include "server/load/member_reading.h"
#include "server/load/rank_load.h"
#include "tests/testing/frame_sinks.h"
#include "tests/testing/small_memory.h"

namespace ckptd {

// Maps other ranks' segments in this process.
class PeerMemoryInProcess final : public PeerMemory {
 public:
  explicit PeerMemoryInProcess(std::string host = "") : host_(std::move(host)) {}

  void Add(uint32_t rank, HostMemory& memory) { memories_[rank] = &memory; }
  // Runs first whenever memory of a rank is mapped.
  std::function<void(uint32_t rank)> on_map;

  absl::StatusOr<SlabView> Map(const PeerSlab& slab, Deadline) override {
    if (on_map) on_map(slab.rank);
    if (slab.host != host_) return absl::FailedPreconditionError("on another host");
    SlabView view;
    for (const PeerSlab::PeerSegment& segment : slab.segments) {
      // Sealed memory can only be written through mappings made before.
      Mapping& mapping = mappings_[{slab.rank, segment.id}];
      if (!mapping.valid()) {
        CKPTD_ASSIGN_OR_RETURN(const UniqueFd fd, memories_.at(slab.rank)->OriginalFd(segment.id));
        void* const address =
            ::mmap(nullptr, kSmallSegment, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
        if (address == MAP_FAILED) return ErrnoStatus(errno, "mapping a segment");
        mapping = Mapping(address, kSmallSegment);
      }
      view.segments.push_back(mapping.span().first(segment.bytes));
    }
    return view;
  }
  void Forget(uint32_t, const std::string&) override {}
  uint64_t KeepOnly(uint32_t rank, const std::vector<uint64_t>& ids) override {
    kept_[rank] = ids;
    return std::erase_if(mappings_, [&](const auto& mapped) {
             const auto& [of, id] = mapped.first;
             return of == rank && std::find(ids.begin(), ids.end(), id) == ids.end();
           }) *
           kSmallSegment;
  }
  // Segments of that rank that are mapped.
  size_t mapped(uint32_t rank) const {
    return static_cast<size_t>(std::count_if(mappings_.begin(), mappings_.end(), [rank](const auto& m) {
      return m.first.first == rank;
    }));
  }
  // As KeepOnly was last told.
  const std::vector<uint64_t>& kept(uint32_t rank) { return kept_[rank]; }

 private:
  const std::string host_;
  std::map<uint32_t, HostMemory*> memories_;
  std::map<uint32_t, std::vector<uint64_t>> kept_;
  std::map<std::pair<uint32_t, uint64_t>, Mapping> mappings_;
};

// Frames go straight to the rank.
class IncomingSink final : public TransferSink {
 public:
  explicit IncomingSink(std::shared_ptr<PreparedLoad> incoming) : incoming_(std::move(incoming)) {}
  absl::Status Send(const Frame& frame) override {
    return incoming_->Take(frame.header, Ragged({frame.data.get(), frame.bytes}));
  }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  const std::shared_ptr<PreparedLoad> incoming_;
};

// Calls a rank directly. Each hook runs before the call it is named after, which
// fails with what the hook returns. Set hooks before the load starts.
class ScriptedLink final : public MemberLink {
 public:
  using Hook = std::function<absl::Status()>;

  explicit ScriptedLink(RankLoad& side) : side_(side), inner_(side) {}

  Hook on_prepare;
  Hook on_execute;
  Hook on_finish;
  Hook on_commit;
  // Alters what the leader says to it, and what it answers.
  std::function<void(PrepareCall&)> alter_prepare;
  std::function<void(PrepareReply&)> alter_prepared;
  // What the rank does when it is told to read.
  std::function<absl::StatusOr<ReadReport>(const ExecuteCall&)> read;

  absl::StatusOr<PrepareReply> Prepare(const PrepareCall& call, Deadline deadline) override {
    CKPTD_RETURN_IF_ERROR(Run(on_prepare));
    PrepareCall heard = call;
    if (alter_prepare) alter_prepare(heard);
    auto reply = inner_.Prepare(heard, deadline);
    if (reply.ok() && alter_prepared) alter_prepared(*reply);
    MutexLock lock(mutex_);
    if (reply.ok() && !reply->resident) ++prepared_;
    return reply;
  }
  absl::StatusOr<std::unique_ptr<ExecuteStream>> Execute(const ExecuteCall& call) override {
    CKPTD_RETURN_IF_ERROR(Run(on_execute));
    auto stream = inner_.Execute(call);
    CKPTD_RETURN_IF_ERROR(stream.status());
    std::future<absl::StatusOr<ReadReport>> reading;
    if (!call.read.empty()) {
      reading = std::async(std::launch::async, [this, call] { return read(call); });
    }
    return std::make_unique<Stream>(*this, std::move(stream).value(), std::move(reading));
  }
  std::unique_ptr<TransferSink> OpenSink(const SinkCall& call) override {
    return std::make_unique<IncomingSink>(side_.Receive(call.epoch, call.name).value());
  }
  absl::Status Commit(const CommitCall& call, Deadline deadline) override {
    CKPTD_RETURN_IF_ERROR(Run(on_commit));
    return inner_.Commit(call, deadline);
  }
  absl::Status Abort(const std::string& name, const absl::Status& why, Deadline) override {
    side_.Abort(name, why);
    MutexLock lock(mutex_);
    aborts_.push_back(why);
    return absl::OkStatus();
  }
  absl::Status GiveBack(const std::string& name, Deadline) override {
    side_.GiveBack(name);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Holds(const std::string& name, Deadline) override {
    return side_.Holds(name);
  }
  absl::Status Probe(Deadline) override { return absl::OkStatus(); }

  // What the rank was told; how often it had to allocate.
  std::vector<absl::Status> aborts() const {
    MutexLock lock(mutex_);
    return aborts_;
  }
  int prepared() const {
    MutexLock lock(mutex_);
    return prepared_;
  }

 private:
  class Stream final : public ExecuteStream {
   public:
    Stream(ScriptedLink& link, std::unique_ptr<ExecuteStream> inner,
           std::future<absl::StatusOr<ReadReport>> reading)
        : link_(link), inner_(std::move(inner)), reading_(std::move(reading)) {}
    bool Send(const Progress& progress) override { return inner_->Send(progress); }
    absl::StatusOr<ReadReport> Finish() override {
      CKPTD_RETURN_IF_ERROR(Run(link_.on_finish));
      CKPTD_RETURN_IF_ERROR(inner_->Finish().status());
      if (!reading_.valid()) return ReadReport();
      return reading_.get();
    }

   private:
    ScriptedLink& link_;
    const std::unique_ptr<ExecuteStream> inner_;
    std::future<absl::StatusOr<ReadReport>> reading_;
  };

  static absl::Status Run(const Hook& hook) { return hook ? hook() : absl::OkStatus(); }

  RankLoad& side_;
  LocalLink inner_;
  mutable Mutex mutex_;
  std::vector<absl::Status> aborts_ ABSL_GUARDED_BY(mutex_);
  int prepared_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One rank without its sockets and threads.
struct RankInProcess {
  RankInProcess(uint32_t rank, uint32_t world_size, uint64_t segments)
      : memory(MakeSmallMemory(segments)),
        behind(MakeSmallMemory(2)),
        host_tier(behind.get(), 2),
        catalog(*memory, rank, world_size),
        side(catalog, *memory, {rank, "memory socket", &host_tier}),
        link(std::make_shared<ScriptedLink>(side)) {}

  std::unique_ptr<HostMemory> memory;
  std::unique_ptr<HostMemory> behind;  // holds two shards that were loaded EXCLUSIVE
  HostTier host_tier;
  Catalog catalog;
  RankLoad side;
  std::shared_ptr<ScriptedLink> link;
};

// All ranks have joined rank 0.
class GroupInProcess {
 public:
  // `hosts`: of each rank; empty: all on one.
  explicit GroupInProcess(uint32_t world_size, uint64_t segments = 8,
                          std::vector<std::string> hosts = {})
      : hosts_(std::move(hosts)), peer_memory_(hosts_.empty() ? "" : hosts_[0]) {
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      ranks_.push_back(std::make_unique<RankInProcess>(rank, world_size, segments));
      peer_memory_.Add(rank, *ranks_.back()->memory);
    }
    for (uint32_t rank = 0; rank < world_size; ++rank) ranks_[rank]->link->read = ReaderOf(rank);
    Membership::Options options;
    options.self = Identity(0);
    options.self_link = ranks_[0]->link;
    options.heartbeat_timeout = std::chrono::hours(1);  // nobody beats here
    options.connect = [this](const MemberIdentity& who) { return ranks_[who.rank]->link; };
    membership_ = std::make_unique<Membership>(std::move(options));
    for (uint32_t rank = 1; rank < world_size; ++rank) Join(rank);
  }

  MemberIdentity Identity(uint32_t rank) const {
    MemberIdentity who;
    who.job = "job";
    who.rank = rank;
    who.world_size = static_cast<uint32_t>(ranks_.size());
    who.incarnation = "process of rank " + std::to_string(rank);
    if (!hosts_.empty()) who.host = hosts_[rank];
    return who;
  }
  void Join(uint32_t rank) { membership_->Join(Identity(rank)).value(); }
  void Drop(uint32_t rank) {
    membership_->Drop(rank, membership_->epoch(), "its cable was cut");
  }

  RankInProcess& rank(uint32_t rank) { return *ranks_[rank]; }
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  Membership& membership() { return *membership_; }
  PeerMemoryInProcess& peer_memory() { return peer_memory_; }
  // Rank 0's.
  PeerAccess peers() { return {peer_memory_, *ranks_[0]->memory, comms_}; }
  // Runs whenever a rank other than 0 maps another's memory, with what it then tells about itself.
  std::function<void(const std::optional<ReadingNow>&)> on_member_maps;

 private:
  std::function<absl::StatusOr<ReadReport>(const ExecuteCall&)> ReaderOf(uint32_t rank) {
    return [this, rank](const ExecuteCall& call) -> absl::StatusOr<ReadReport> {
      RankInProcess& own = *ranks_[rank];
      CKPTD_ASSIGN_OR_RETURN(const auto incoming, own.side.Receive(call.epoch, call.name));
      PeerMemoryInProcess peers(hosts_.empty() ? "" : hosts_[rank]);
      for (uint32_t i = 0; i < size(); ++i) peers.Add(i, *ranks_[i]->memory);
      const auto connect = [this](const MemberIdentity& who) { return ranks_[who.rank]->link; };
      ReadProgressPublisher reading;
      peers.on_map = [&](uint32_t) {
        if (on_member_maps) on_member_maps(reading.Now());
      };
      const PeerAccess access{peers, *own.memory, comms_};
      Worker worker;
      StorageStalls stalls;
      return ReadForLeader({own.catalog, access, connect, rank, "", {.threads = 2}, stopping_, reading,
                            worker, stalls},
                           *incoming, call);
    };
  }

  const std::vector<std::string> hosts_;
  const std::atomic<bool> stopping_ = false;
  std::vector<std::unique_ptr<RankInProcess>> ranks_;
  PeerMemoryInProcess peer_memory_;
  CommunicatorCache comms_{nullptr, "this test has none", true};
  std::unique_ptr<Membership> membership_;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_GROUP_IN_PROCESS_H_
