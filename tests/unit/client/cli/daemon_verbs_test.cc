// Verbs that call a daemon, here a fake one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/client/cli/cli_fixture.h"
#include "tests/unit/client/fake_daemon.h"

namespace ckptd::cli {
namespace {

using fake::FakeDaemon;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kActive = v1::Checkpoint::STATE_ACTIVE;
constexpr auto kLoading = v1::Checkpoint::STATE_LOADING;

class DaemonVerbs : public ::testing::Test {
 protected:
  Outcome Run(std::vector<std::string> arguments) {
    if (!started_) daemon_.Start();
    started_ = true;
    arguments.insert(arguments.end(), {"--address", daemon_.socket()});
    return run_(arguments);
  }
  // A load in progress, and the states that a watch shows next.
  void Loading(const std::vector<v1::Checkpoint>& watch) {
    *daemon_.answers.load.mutable_checkpoint() = FakeDaemon::MakeCheckpoint(kLoading);
    daemon_.answers.watch = watch;
  }
  static v1::Checkpoint Transferring() {
    v1::Checkpoint out = FakeDaemon::MakeCheckpoint(kLoading);
    out.mutable_progress()->set_stage(v1::STAGE_TRANSFERRING);
    out.mutable_progress()->set_bytes_total(1000);
    out.mutable_progress()->set_bytes_done(250);
    return out;
  }

  FakeDaemon daemon_;
  bool started_ = false;
  Runner run_;
};

TEST_F(DaemonVerbs, LoadShowsProgressOnStderrAndTheResultOnStdout) {
  Loading({Transferring(), FakeDaemon::MakeCheckpoint(kActive)});
  const Outcome outcome = Run({"load", "/models/tiny", "--layout", "fsdp:2"});
  EXPECT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("TRANSFERRING  25%"));
  EXPECT_EQ(outcome.out,
            "checkpoints/ab12 is ACTIVE: rank 0 of 2 holds 3 tensors, 1.5 GB\n");
}

TEST_F(DaemonVerbs, LoadAndPlanSayWhichPartOfTheSourceIsTaken) {
  Loading({FakeDaemon::MakeCheckpoint(kActive)});
  daemon_.answers.inspect.add_remarks("took what lies below \"model\"");
  const auto noted = HasSubstr("ckptctl: note: took what lies below");
  EXPECT_THAT(Run({"load", "/m", "--layout", "fsdp:2"}).err, noted);
  EXPECT_EQ(Run({"load", "/m", "--layout", "fsdp:2", "--quiet"}).err, "");
  EXPECT_THAT(Run({"plan", "/m", "--layout", "fsdp:2", "--remote"}).err, noted);
}

TEST_F(DaemonVerbs, LoadDrawsABarOnATerminal) {
  Loading({Transferring(), FakeDaemon::MakeCheckpoint(kActive)});
  run_.terminal = true;
  EXPECT_THAT(Run({"load", "/m", "--layout", "fsdp:2"}).err, HasSubstr("[######......"));
}

TEST_F(DaemonVerbs, LoadPrintsOnlyTheNameWhenQuiet) {
  Loading({Transferring(), FakeDaemon::MakeCheckpoint(kActive)});
  const Outcome outcome = Run({"load", "/m", "--layout", "fsdp:2", "--quiet"});
  EXPECT_EQ(outcome.out, "checkpoints/ab12\n");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(DaemonVerbs, LoadGivesOneJsonObject) {
  Loading({Transferring(), FakeDaemon::MakeCheckpoint(kActive)});
  daemon_.answers.load.add_differs("dtype_policy");
  const auto loaded = Parsed<v1::LoadCheckpointResponse>(
      Run({"load", "/m", "--layout", "fsdp:2", "--output", "json"}).out);
  EXPECT_EQ(loaded.checkpoint().state(), kActive);
  EXPECT_EQ(loaded.checkpoint().slab_bytes(), 1'500'000'000u);
  EXPECT_THAT(loaded.differs(), ::testing::ElementsAre("dtype_policy"));
}

TEST_F(DaemonVerbs, LoadSaysWhatWasAskedFor) {
  Loading({FakeDaemon::MakeCheckpoint(kActive)});
  Run({"load", "tiny", "--layout", "fsdp:2", "--mode", "exclusive", "--handle", "cuda_ipc",
       "--digest", "off", "--dtype", "f16", "--keep-fp32", "*.norm", "--timeout", "90s"});
  const v1::LoadSpec& sent = daemon_.last_load.spec();
  EXPECT_EQ(sent.source(), (std::filesystem::current_path() / "tiny").string());
  EXPECT_EQ(sent.intended_mode(), v1::ATTACH_MODE_EXCLUSIVE);
  EXPECT_EQ(sent.handle_kind(), v1::HANDLE_KIND_CUDA_IPC);
  EXPECT_TRUE(sent.skip_digests());
  EXPECT_EQ(sent.dtype_policy().cast_to(), v1::DTYPE_F16);
  EXPECT_EQ(sent.dtype_policy().keep_f32(0), "*.norm");
  EXPECT_EQ(sent.timeout().seconds(), 90);
}

TEST_F(DaemonVerbs, LoadFailsWithTheLoadsOwnReason) {
  v1::Checkpoint failed = FakeDaemon::MakeCheckpoint(v1::Checkpoint::STATE_FAILED);
  failed.mutable_failure()->set_code(8);
  failed.mutable_failure()->set_reason("NO_MEMORY");
  failed.mutable_failure()->set_message("rank 1 has no room\x1b[2J");
  Loading({Transferring(), failed});
  const Outcome outcome = Run({"load", "/m", "--layout", "fsdp:2"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 has no room?[2J"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("\x1b")));
}

TEST_F(DaemonVerbs, LoadReturnsAtOnceWhenToldNotToWait) {
  Loading({});
  const Outcome outcome = Run({"load", "/m", "--layout", "fsdp:2", "--no-wait"});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(outcome.out, HasSubstr("LOADING"));
}

TEST_F(DaemonVerbs, LoadIsStillLoadingWhenTimeRunsOut) {
  Loading({Transferring()});
  daemon_.answers.before_watch_ends = [](grpc::ServerContext* context) {
    while (!context->IsCancelled()) std::this_thread::yield();
  };
  const Outcome outcome = Run({"load", "/m", "--layout", "fsdp:2", "--timeout", "2s"});
  EXPECT_EQ(outcome.code, kExitNotReady);
  EXPECT_THAT(outcome.err, HasSubstr("250 of 1000 bytes"));
}

TEST_F(DaemonVerbs, LoadGoesOnWhenTheWatcherIsInterrupted) {
  Loading({Transferring()});
  daemon_.answers.before_watch_ends = [this](grpc::ServerContext* context) {
    EXPECT_TRUE(run_.interrupt.Cancel());
    while (!context->IsCancelled()) std::this_thread::yield();
  };
  const Outcome outcome = Run({"load", "/m", "--layout", "fsdp:2"});
  EXPECT_EQ(outcome.code, kExitInterrupted);
  EXPECT_THAT(outcome.err, HasSubstr("ckptctl watch checkpoints/ab12"));
  EXPECT_THAT(outcome.err, HasSubstr("cancel it with `ckptctl unload --force checkpoints/ab12`"));
}

TEST_F(DaemonVerbs, WatchTakesAShortName) {
  daemon_.answers.watch = {FakeDaemon::MakeCheckpoint(kActive)};
  const Outcome outcome = Run({"watch", "ab12"});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(outcome.out, HasSubstr("state:      ACTIVE"));
}

TEST_F(DaemonVerbs, ListAlignsWhatTheDaemonHolds) {
  v1::Checkpoint active = FakeDaemon::MakeCheckpoint(kActive);
  active.set_resident_ranks(1);
  daemon_.answers.list = {active, Transferring()};
  EXPECT_EQ(Run({"list"}).out,
            "NAME              STATE          SIZE  TENSORS  LEASES  PINNED  RANKS         AGE  "
            "LAYOUT  SOURCE\n"
            "checkpoints/ab12  ACTIVE       1.5 GB        3       0  no        1/2  1 min 30 s  "
            "fsdp:2  /models/tiny\n"
            "checkpoints/ab12  LOADING 25%  1.5 GB        3       0  no             1 min 30 s  "
            "fsdp:2  /models/tiny\n");
}

TEST_F(DaemonVerbs, ListPrintsNamesOnlyWhenQuiet) {
  daemon_.answers.list = {FakeDaemon::MakeCheckpoint(kActive)};
  EXPECT_EQ(Run({"list", "-q"}).out, "checkpoints/ab12\n");
}

TEST_F(DaemonVerbs, ListShowsLoadsThatFailedOnRequestAndSaysHowManyThereAre) {
  v1::Checkpoint failed = FakeDaemon::MakeCheckpoint(v1::Checkpoint::STATE_FAILED);
  failed.set_name("checkpoints/failed");
  daemon_.answers.list = {FakeDaemon::MakeCheckpoint(kActive), failed, failed};
  const Outcome outcome = Run({"list"});
  EXPECT_THAT(outcome.out, Not(HasSubstr("checkpoints/failed")));
  EXPECT_THAT(outcome.err, HasSubstr("2 failed loads are not shown"));
  EXPECT_EQ(Parsed<v1::ListCheckpointsResponse>(Run({"list", "--output", "json"}).out).checkpoints_size(), 1);
  EXPECT_THAT(Run({"list", "--failed"}).out, HasSubstr("checkpoints/failed"));
  EXPECT_THAT(Run({"list", "--state", "FAILED"}).out, HasSubstr("checkpoints/failed"));
}

TEST_F(DaemonVerbs, AllRanksNeedsAnAddressOfEachOfThem) {
  const Outcome outcome = Run({"list", "--all-ranks"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("is the address of one daemon; write {rank} in it"));
  EXPECT_EQ(Run({"list", "--all-ranks", "--rank", "1"}).code, kExitUsage);
}

// The daemon belongs to rank 2 of four, and its job's folder has no other.
class DaemonVerbsOnAHostOfSeveral : public DaemonVerbs {
 protected:
  DaemonVerbsOnAHostOfSeveral() {
    daemon_.answers.info.set_rank(2);
    daemon_.answers.info.set_world_size(4);
    daemon_.Start();
    for (const char* end : {".sock", ".admin.sock"}) {
      std::filesystem::rename(daemon_.dir() / (std::string("rank-0") + end),
                              daemon_.dir() / (std::string("rank-2") + end));
    }
    daemon_.dir().Write("rank-7.lock", "");
  }
  Outcome OnAll(std::vector<std::string> arguments) {
    const std::filesystem::path folder = daemon_.dir().path();
    const ScopedVariable run_dir("CKPTD_RUN_DIR", folder.parent_path().string());
    arguments.insert(arguments.end(), {"--all-ranks", "--job", folder.filename().string()});
    return run_(arguments);
  }
};

TEST_F(DaemonVerbsOnAHostOfSeveral, AllRanksAreThoseWithASocketHereThoughRank0IsNot) {
  daemon_.answers.list = {FakeDaemon::MakeCheckpoint(kActive)};
  const Outcome outcome = OnAll({"list", "--output", "json"});
  EXPECT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_EQ(Parsed<v1::ListCheckpointsResponse>(outcome.out).checkpoints_size(), 1);
  EXPECT_EQ(outcome.err, "ckptctl: 3 of 4 ranks have no socket on this host: run this on theirs, too\n");
}

TEST_F(DaemonVerbsOnAHostOfSeveral, DrainWaitsForThoseThatAnswerThoughOneDoesNot) {
  std::filesystem::copy_file(daemon_.dir() / "rank-7.lock", daemon_.dir() / "rank-3.admin.sock");
  const Outcome outcome = OnAll({"drain", "--wait", "5m", "--timeout", "1s"});
  EXPECT_EQ(outcome.code, kExitUnreachable);
  EXPECT_THAT(outcome.err, HasSubstr("rank 3: "));
  EXPECT_THAT(outcome.out, HasSubstr("the daemon of rank 2 takes no new work"));
  ASSERT_EQ(daemon_.admin_calls.size(), 2u);
  EXPECT_EQ(daemon_.admin_calls[0], "drain 0");
  EXPECT_THAT(daemon_.admin_calls[1], ::testing::MatchesRegex("drain 2[0-9][0-9]"));  // what is left
}

TEST_F(DaemonVerbsOnAHostOfSeveral, ARankOfThisHostWithoutASocketHasFailed) {
  for (const int rank : {0, 1, 2, 3}) {
    v1::MemberInfo& member = *daemon_.answers.info.add_members();
    member.set_rank(rank);
    member.set_host(rank < 3 ? "here" : "there");
  }
  daemon_.answers.info.set_rank(0);
  const Outcome outcome = OnAll({"list", "--timeout", "2s"});
  EXPECT_EQ(outcome.code, kExitUnreachable);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1: "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 3: ")));
}

TEST_F(DaemonVerbsOnAHostOfSeveral, RanksOfOtherHostsThatHaveNotJoinedAreNotMissed) {
  for (const int rank : {0, 1, 2, 3}) daemon_.answers.info.add_members()->set_rank(rank);
  daemon_.answers.info.mutable_members(0)->set_host("here");
  daemon_.answers.info.mutable_members(2)->set_host("here");
  daemon_.answers.info.set_rank(0);
  const Outcome outcome = OnAll({"list", "--timeout", "2s"});
  EXPECT_THAT(outcome.err, HasSubstr("rank 0: "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 1: ")));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 3: ")));
}

TEST_F(DaemonVerbsOnAHostOfSeveral, ARankBesideThisOneIsMissedBeforeItHasJoined) {
  (*daemon_.answers.info.mutable_config())["local-size"] = "2";
  const Outcome outcome = OnAll({"list", "--timeout", "2s"});
  EXPECT_EQ(outcome.code, kExitUnreachable);
  EXPECT_THAT(outcome.err, HasSubstr("rank 3: "));
  EXPECT_THAT(outcome.err, HasSubstr("2 of 4 ranks have no socket on this host"));
}

TEST_F(DaemonVerbs, UnloadingWhatIsIdleLeavesWhatIsLeasedOrPinned) {
  v1::Checkpoint leased = FakeDaemon::MakeCheckpoint(kActive);
  leased.set_name("checkpoints/leased");
  leased.set_lease_count(1);
  v1::Checkpoint pinned = FakeDaemon::MakeCheckpoint(kActive);
  pinned.set_name("checkpoints/pinned");
  pinned.set_pinned(true);
  daemon_.answers.list = {leased, FakeDaemon::MakeCheckpoint(kActive), pinned, Transferring()};
  EXPECT_EQ(Run({"unload", "--idle"}).code, kExitFine);
  EXPECT_THAT(daemon_.admin_calls, ::testing::ElementsAre("unload checkpoints/ab12 idle"));
  EXPECT_EQ(Run({"unload", "--idle", "ab12"}).code, kExitUsage);
  EXPECT_EQ(Run({"unload"}).code, kExitUsage);
}

TEST_F(DaemonVerbs, LoadWaitsForMemoryForAsLongAsItIsToldAndHoldsNothing) {
  Run({"load", "/m", "--layout", "fsdp:2"});
  EXPECT_FALSE(daemon_.last_load.spec().has_wait_memory());
  Run({"load", "/m", "--layout", "fsdp:2", "--wait-memory", "90s"});
  EXPECT_EQ(daemon_.last_load.spec().wait_memory().seconds(), 90);
  EXPECT_TRUE(daemon_.last_load.no_hold());
}

TEST_F(DaemonVerbs, ListShowsThoseOfAStateOnlyWhenAsked) {
  daemon_.answers.list = {FakeDaemon::MakeCheckpoint(kActive), Transferring()};
  EXPECT_THAT(Run({"list", "--state", "active"}).out, Not(HasSubstr("LOADING")));
  EXPECT_EQ(Run({"list", "--state", "LOADING", "-q"}).out, "checkpoints/ab12\n");
  EXPECT_EQ(Run({"list", "--state", "FAILED", "-q"}).out, "");
  EXPECT_EQ(Run({"list", "--state", "gone"}).code, kExitUsage);
}

TEST_F(DaemonVerbs, GetShowsHowFarALoadIs) {
  daemon_.answers.get = {Transferring()};
  EXPECT_THAT(Run({"get", "ab12"}).out, HasSubstr("stage:      TRANSFERRING  25%"));
}

TEST_F(DaemonVerbs, GetPassesTheDaemonsErrorOn) {
  daemon_.answers.error = fake::DaemonError(grpc::StatusCode::NOT_FOUND, "CHECKPOINT_NOT_FOUND",
                                            "there is no checkpoints/zz; see `ckptctl list`");
  const Outcome outcome = Run({"get", "zz", "--output", "json"});
  EXPECT_EQ(outcome.code, kExitFailed);
  const ErrorOutput::Error error = Parsed<ErrorOutput>(outcome.err).error();
  EXPECT_EQ(error.code(), "NOT_FOUND");
  EXPECT_EQ(error.facts().at("tensor"), "model.weight");
}

TEST_F(DaemonVerbs, VerifyTellsAMismatchByItsExitCode) {
  daemon_.answers.verify.set_tensor_count(3);
  daemon_.answers.verify.add_mismatched("model.weight");
  daemon_.answers.verify.add_files("/m/a.safetensors");
  daemon_.answers.verify.set_rank(3);
  const Outcome outcome = Run({"verify", "ab12"});
  EXPECT_EQ(outcome.code, kExitMismatch);
  EXPECT_EQ(outcome.out, "model.weight in /m/a.safetensors: not the bytes that were loaded\n");
  EXPECT_THAT(outcome.err, HasSubstr("on rank 3: its memory has changed: model.weight in /m/a.sa"));
}

TEST_F(DaemonVerbs, VerifyOfWhatIsNeitherACheckpointNorAFileSaysBoth) {
  daemon_.answers.error = fake::DaemonError(grpc::StatusCode::NOT_FOUND, "CHECKPOINT_NOT_FOUND",
                                            "there is no checkpoints/zz");
  const Outcome outcome = Run({"verify", "zz"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("there is no file zz: there is no checkpoints/zz"));
  EXPECT_THAT(Run({"verify", "checkpoints/zz"}).err, Not(HasSubstr("no file")));
}

TEST_F(DaemonVerbs, VerifyOfOneThatIsLoadingIsNotReady) {
  daemon_.answers.error = fake::DaemonError(grpc::StatusCode::FAILED_PRECONDITION, "NOT_ACTIVE",
                                            "checkpoints/ab12 is LOADING");
  EXPECT_EQ(Run({"verify", "ab12"}).code, kExitNotReady);
}

TEST_F(DaemonVerbs, VerifyAttachedChecksTheMappedBytes) {
  const Outcome outcome = Run({"verify", "ab12", "--attached"});
  EXPECT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_EQ(outcome.out,
            "checkpoints/ab12 of rank 0: 3 tensors, 164 B: digests over the memory mapped here are "
            "right; --rank chooses another\n");
}

TEST_F(DaemonVerbs, VerifyAttachedFindsAChangedByte) {
  std::string bytes = FakeDaemon::SlabBytes().substr(4096);
  bytes[99] ^= 1;
  daemon_.segments[1] = fake::MemoryOf(bytes);
  const Outcome outcome = Run({"verify", "ab12", "--attached"});
  EXPECT_EQ(outcome.code, kExitMismatch);
  EXPECT_EQ(outcome.out, "a: not the bytes that were loaded\n");
}

TEST_F(DaemonVerbs, VerifyAttachedFindsDirtyPadding) {
  std::string bytes = FakeDaemon::SlabBytes().substr(0, 4096);
  bytes[127] = 1;
  daemon_.segments[0] = fake::MemoryOf(bytes);
  EXPECT_EQ(Run({"verify", "ab12", "--attached"}).out, "b: not the bytes that were loaded\n");
}

TEST_F(DaemonVerbs, VerifyAttachedNeedsDigests) {
  daemon_.answers.acquire.mutable_tensors()->clear_digests();
  const Outcome outcome = Run({"verify", "ab12", "--attached", "--output", "json"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_EQ(ReasonIn(outcome.err), "NO_DIGESTS");
}

TEST_F(DaemonVerbs, UnloadSaysWhatItFreed) {
  EXPECT_EQ(Run({"unload", "ab12", "--force"}).out,
            "checkpoints/ab12 of rank 0 is unloaded, 1.5 GB free for other loads\n");
  EXPECT_THAT(daemon_.admin_calls, ::testing::ElementsAre("unload checkpoints/ab12 force"));
}

TEST_F(DaemonVerbs, UnloadSaysThatItHasCancelledALoad) {
  daemon_.answers.cancelled = true;
  EXPECT_EQ(Run({"unload", "ab12", "--force"}).out,
            "checkpoints/ab12 was loading: the load is cancelled, on every rank\n");
  const Outcome outcome = Run({"unload", "ab12", "--force", "--output", "json"});
  EXPECT_TRUE(Parsed<UnloadOutput>(outcome.out).cancelled());
}

TEST_F(DaemonVerbs, UnloadTakesSeveralInTheOrderGiven) {
  const Outcome outcome = Run({"unload", "ab12", "checkpoints/cd34", "--output", "json"});
  EXPECT_EQ(outcome.code, kExitFine);
  EXPECT_THAT(daemon_.admin_calls,
              ::testing::ElementsAre("unload checkpoints/ab12", "unload checkpoints/cd34"));
  const size_t second = outcome.out.rfind('{');
  EXPECT_EQ(Parsed<UnloadOutput>(outcome.out.substr(0, second)).name(), "checkpoints/ab12");
  EXPECT_EQ(Parsed<UnloadOutput>(outcome.out.substr(second)).name(), "checkpoints/cd34");
}

TEST_F(DaemonVerbs, WhatIsDoneToOneRankOfSeveralIsSaidToBe) {
  daemon_.answers.info.set_rank(1);
  daemon_.answers.info.set_world_size(2);
  const std::string others = "; --rank chooses another\n";
  EXPECT_EQ(Run({"unload", "ab12"}).out,
            "checkpoints/ab12 of rank 1 is unloaded, 1.5 GB free for other loads" + others);
  EXPECT_EQ(Run({"drain"}).out,
            "the daemon of rank 1 takes no new work; 0 leases are left" + others);
  EXPECT_EQ(Run({"pin", "ab12"}).out,
            "checkpoints/ab12 of rank 0 is pinned: it is never evicted" + others);
  EXPECT_EQ(Parsed<DrainOutput>(Run({"drain", "--output", "json"}).out).rank(), 1);
}

TEST_F(DaemonVerbs, PinGoesBothWays) {
  Run({"pin", "ab12"});
  Run({"pin", "ab12", "--off"});
  EXPECT_THAT(daemon_.admin_calls,
              ::testing::ElementsAre("pin checkpoints/ab12 on", "pin checkpoints/ab12 off"));
}

TEST_F(DaemonVerbs, DrainWaitsAsLongAsTold) {
  daemon_.answers.remaining_leases = 1;
  EXPECT_THAT(Run({"drain", "--wait", "5m"}).out, HasSubstr("1 lease is left"));
  EXPECT_THAT(daemon_.admin_calls, ::testing::ElementsAre("drain 300"));
}

TEST_F(DaemonVerbs, TrimSaysWhatWentBackAndWhatStaysAndWhy) {
  daemon_.answers.trim.set_freed_bytes(1'500'000'000);
  daemon_.answers.trim.set_used_bytes(400'000'000);
  EXPECT_EQ(Run({"trim"}).out,
            "rank 0 gave 1.5 GB back to the system; 400 MB of checkpoints stay until they are "
            "unloaded\n");
  daemon_.answers.trim.set_lingering_bytes(2'000'000);
  EXPECT_THAT(Run({"trim"}).out, HasSubstr("unloaded, and 2.0 MB that clients still map"));
  const auto trimmed = Parsed<v1::TrimMemoryResponse>(Run({"trim", "--output", "json"}).out);
  EXPECT_EQ(trimmed.SerializeAsString(), daemon_.answers.trim.SerializeAsString());
}

TEST_F(DaemonVerbs, InfoSaysHowLargeTheArenaIsToBeAndWhy) {
  daemon_.answers.info.mutable_memory()->set_arena_target_bytes(1'500'000'000);
  daemon_.answers.info.mutable_memory()->set_arena_why("as the job loaded last");
  EXPECT_THAT(Run({"info"}).out, HasSubstr("1.5 GB: as the job loaded last"));
  const auto info = Parsed<v1::GetDaemonInfoResponse>(Run({"info", "--output", "json"}).out);
  EXPECT_EQ(info.memory().arena_why(), "as the job loaded last");
}

TEST_F(DaemonVerbs, LogLevelTellsTheOneBefore) {
  const auto set = Parsed<v1::SetLogLevelResponse>(Run({"log-level", "debug", "--output", "json"}).out);
  EXPECT_EQ(set.previous_level(), "info");
}

TEST_F(DaemonVerbs, LeasesNameTheirHolders) {
  v1::Lease& lease = *daemon_.answers.leases.add_leases();
  lease.set_name("checkpoints/ab12/leases/1");
  lease.set_mode(v1::ATTACH_MODE_PRIVATE);
  lease.set_pid(77);
  lease.set_connected(true);
  EXPECT_THAT(Run({"leases"}).out, HasSubstr("checkpoints/ab12/leases/1  PRIVATE   77    0  yes"));
  const auto leases = Parsed<v1::ListLeasesResponse>(Run({"leases", "--output", "json"}).out);
  EXPECT_EQ(leases.leases(0).pid(), 77);
}

TEST_F(DaemonVerbs, InfoShowsTheGroupAndTheMemory) {
  v1::GetDaemonInfoResponse& info = daemon_.answers.info;
  info.set_state("JOINING");
  info.set_detail("waiting for rank 1");
  info.mutable_memory()->set_budget_bytes(64'000'000'000);
  info.add_members()->set_rank(1);
  (*info.mutable_config())["arena_bytes"] = "8GiB";
  const Outcome outcome = Run({"info", "--config"});
  EXPECT_THAT(outcome.out, HasSubstr("waiting for rank 1"));
  EXPECT_THAT(outcome.out, HasSubstr("0 B of 64.0 GB used"));
  EXPECT_THAT(outcome.out, HasSubstr("arena_bytes  8GiB"));
}

TEST_F(DaemonVerbs, PlanRemoteAsksTheDaemon) {
  daemon_.answers.plan.set_plan_digest("0123456789abcdef");
  EXPECT_THAT(Run({"plan", "/models/tiny", "--layout", "fsdp:2", "--remote"}).out,
              HasSubstr("0123456789abcdef"));
  EXPECT_EQ(daemon_.last_plan.spec().layout().rules(), "fsdp:2");
}

TEST_F(DaemonVerbs, PlanRemoteAsksTheDaemonForDevicesToo) {
  v1::DeviceMap& map = *daemon_.answers.plan.mutable_device_map();
  map.add_modules()->set_name("a");
  map.mutable_modules(0)->set_device("1");
  const Outcome outcome = Run({"plan", "/m", "--device-map", "balanced_low_0", "--max-memory",
                               "0=1GB,1=1GB", "--tied", "a=b", "--remote", "--output", "json"});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_EQ(Parsed<DeviceMapOutput>(outcome.out).device_map().at("a").number_value(), 1);
  const v1::DeviceMapRules& rules = daemon_.last_plan.device_map();
  EXPECT_EQ(rules.way(), v1::DeviceMapRules::WAY_BALANCED_LOW_0);
  EXPECT_EQ(rules.max_memory(), "0=1GB,1=1GB");
  EXPECT_EQ(rules.tied().at("a"), "b");
}

}  // namespace
}  // namespace ckptd::cli
