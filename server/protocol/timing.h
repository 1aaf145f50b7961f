// Every deadline and patience of the daemon, in one place: most hold only beside others. A call's
// deadline is longer than what the called side may take, and is shorter than its caller's.
// The heartbeat's interval and timeout are settings (daemon/config.h).
#ifndef CKPTD_SERVER_PROTOCOL_TIMING_H_
#define CKPTD_SERVER_PROTOCOL_TIMING_H_

#include <chrono>

namespace ckptd::timing {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// --- A request on its way to the leader, from the outside in ---
inline constexpr hours kMaxTimeout{24};       // of a load; longer ones are taken as this
inline constexpr minutes kDefaultTimeout{10};  // of a load that names none
inline constexpr seconds kProposal{20};        // a member's whole attempt, with retries
inline constexpr seconds kProposalCall{8};     // one call to the leader
inline constexpr seconds kFinishingLoad{7};    // the leader waits for a load that is being published
inline constexpr seconds kFileCheck{5};        // whether files are as they were
inline constexpr milliseconds kRecognise{500};  // whether a source can be a checkpoint at all
static_assert(kProposal > kProposalCall && kProposalCall > kFinishingLoad);
static_assert(kFinishingLoad > kFileCheck && kFileCheck > kRecognise);

// --- Loads that wait ---
inline constexpr milliseconds kCoordinatorTick{200};
inline constexpr seconds kConflictPatience{5};  // loads that wait for each other's ranks
// Pauses between attempts of a load that waits for memory: each opens its files and plans again.
inline constexpr milliseconds kFirstPause{100};
inline constexpr milliseconds kLongestPause{5000};
// A client that has watched a load and is gone for so long has ended.
inline constexpr seconds kAbandoned{2};
// A stalled runner gets so long after its load's deadline to say so itself.
inline constexpr seconds kOverdue{1};
// A call to storage that lasts so long stands still: others need not wait behind it.
inline constexpr seconds kStorageStill{2};
static_assert(kConflictPatience > kAbandoned);  // a client that is gone is no conflict
static_assert(kConflictPatience > kCoordinatorTick);

// --- The leader's calls to members ---
// Fresh memory faults at about 1.5 GB/s, and a shard is hashed or copied to the host tier at
// some GB/s; every other call answers within moments.
inline constexpr minutes kPrepare{5};
inline constexpr seconds kMemberCall{8};
inline constexpr seconds kMapSlab{8};   // a reader maps another rank's memory
inline constexpr seconds kAbort{2};     // to tell a rank that a load has failed
inline constexpr seconds kProbe{1};     // whether a process still answers on its port
inline constexpr seconds kHoldsCall{2};  // whether a rank holds its shard, asked of all ranks
inline constexpr seconds kFindMissing{8};  // a member asks the leader, which asks all ranks
inline constexpr seconds kCancel{8};  // a member tells the leader, whose readers notice and abort
inline constexpr minutes kLongestPeerCall{10};  // where a peer names no deadline
static_assert(kPrepare > kMemberCall && kMemberCall > kAbort && kAbort > kProbe);
// The end of a load that is being published, the answer for an earlier caller, then its own.
static_assert(kFindMissing > 3 * kHoldsCall);
static_assert(kCancel > kAbort + kProbe);
static_assert(kLongestPeerCall > kPrepare);

// --- The transfer ---
inline constexpr milliseconds kFanoutTick{100};
inline constexpr seconds kScatterStep{8};  // the other ranks of one exchange
// Ranks that meet for the first time connect in an exchange: so much more for each rank.
inline constexpr milliseconds kScatterConnect{10};
inline constexpr seconds kCommunicatorClose{8};
inline constexpr seconds kSinkClose{5};    // frames that are being placed; each takes a millisecond
inline constexpr seconds kStreamReason{1};  // for the reason of a stream that has ended already
// The leader says why it ended a load; a member whose stream broke waits for that.
inline constexpr seconds kAbortArrives{3};
// Once some ranks have answered, the others are named before the load is declared stalled.
inline constexpr seconds kStragglersNamedFirst{1};
// NCCL tells of a rank that gives up sooner than that rank tells why.
inline constexpr milliseconds kPrimaryError{500};
static_assert(kAbortArrives > kAbort);
static_assert(kScatterStep > kStragglersNamedFirst);
static_assert(kPrimaryError < kProbe);

// --- Members and their leader ---
inline constexpr seconds kJoin{3};
inline constexpr milliseconds kFirstJoinRetry{50};
inline constexpr seconds kLastJoinRetry{1};
inline constexpr milliseconds kOftenHeartbeat{100};  // while a load runs
// The leader's time per member and heartbeat: thousands of members would leave it none.
inline constexpr microseconds kHeartbeatShare{250};

// --- Shards and leases ---
// An ACTIVE shard is not evicted for so long while a client that waited for it has yet to acquire
// it.
inline constexpr seconds kKeptForClient{10};
inline constexpr seconds kTokenLifetime{30};  // from AcquireShard to the fd socket
inline constexpr seconds kTokenPatience{5};   // the fd socket waits for a token, or for what is received
// The kernel says that too many descriptors of this user are on their way: after that, an error.
inline constexpr milliseconds kFdSend{500};
static_assert(kTokenLifetime > kTokenPatience && kTokenPatience > kFdSend);

// --- Participants of a load (trainers) ---
// Ranks that join within this time of a failure are told of it. On a busy machine a rank may be that
// late.
inline constexpr seconds kFailureVisibleFor{30};
inline constexpr seconds kKeepFailures{60};  // until nobody can be told any more
// A failed rank may make its next call first, and then nobody is told any more.
inline constexpr seconds kRejoinGrace{2};
inline constexpr seconds kAbsentAfter{5};   // a failed rank that makes no further call will not come
inline constexpr seconds kLateJoinWait{4};  // news of a participant may come before itself
inline constexpr seconds kFailureTravels{2};  // the leader hears of a failure before its client goes on
inline constexpr hours kLongestBarrier{24};
static_assert(kRejoinGrace < kAbsentAfter && kAbsentAfter < kFailureVisibleFor);
static_assert(kFailureVisibleFor < kKeepFailures);

// --- Clients ---
inline constexpr minutes kLongestClientCall{10};  // where a client names no deadline
inline constexpr milliseconds kWatchPoll{500};
inline constexpr milliseconds kWatchPeriod{100};
// A watcher can tell a load that waits from a daemon that stands still.
inline constexpr seconds kWatchSilence{2};
// Ranks hear one after the other that a load has ended: for a client that asks at once.
inline constexpr seconds kEndTravels{1};
static_assert(kWatchPeriod < kWatchPoll && kWatchPoll < kWatchSilence);

}  // namespace ckptd::timing

#endif  // CKPTD_SERVER_PROTOCOL_TIMING_H_
