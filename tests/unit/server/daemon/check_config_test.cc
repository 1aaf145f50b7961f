#include "server/daemon/check_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

Config Good() { return DefaultConfig([](const std::string&) { return std::nullopt; }); }

TEST(CheckConfig, AcceptsTheDefaults) { EXPECT_OK(CheckConfig(Good())); }

TEST(CheckConfig, AcceptsTheLastPorts) {
  Config config = Good();
  config.peer_port = 65530;
  config.local_size = 6;
  config.health_port = "65535";
  config.metrics = "0.0.0.0:9464";
  EXPECT_OK(CheckConfig(config));
}

struct Spoiled {
  std::function<void(Config&)> spoil;
  const char* names;  // the flag that the error must name
};

class SpoiledConfig : public ::testing::TestWithParam<Spoiled> {};

TEST_P(SpoiledConfig, IsRefusedByTheNameOfTheFlag) {
  Config config = Good();
  GetParam().spoil(config);
  EXPECT_THAT(CheckConfig(config), FailsWith(kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(CheckConfig(config), Says(GetParam().names));
}

INSTANTIATE_TEST_SUITE_P(
    Flags, SpoiledConfig,
    ::testing::Values(
        Spoiled{[](Config& c) { c.rank = 1; }, "--rank 1"},
        Spoiled{[](Config& c) { c.world_size = 0; }, "--world-size 0"},
        Spoiled{[](Config& c) { c.world_size = 4294967295; }, "--world-size 4294967295"},
        Spoiled{[](Config& c) { c.job = ""; }, "--job"},
        Spoiled{[](Config& c) { c.job = "a\nb"; }, "--job"},
        Spoiled{[](Config& c) { c.job = "a/b"; }, "--job"},
        Spoiled{[](Config& c) { c.job = "a{rank}"; }, "--job"},
        Spoiled{[](Config& c) { c.run_dir = "/run/{local_rank}"; }, "--run-dir"},
        Spoiled{[](Config& c) { c.job = "a\xff"; }, "--job"},
        Spoiled{[](Config& c) { c.run_dir = "/run/\xff"; }, "--run-dir"},
        Spoiled{[](Config& c) { c.run_dir = "/run/\n"; }, "--run-dir"},
        Spoiled{[](Config& c) { c.host_id = "a\xff"; }, "--host-id"},
        Spoiled{[](Config& c) { c.job = ".."; }, "--job"},
        Spoiled{[](Config& c) { c.job = "."; }, "--job"},
        Spoiled{[](Config& c) { c.memory = "gpu"; }, "--memory gpu"},
        Spoiled{[](Config& c) { c.read = "aloud"; }, "--read aloud"},
        Spoiled{[](Config& c) { c.huge_pages = "on"; }, "--huge-pages on"},
        Spoiled{[](Config& c) { c.peer_auth = "maybe"; }, "--peer-auth maybe"},
        Spoiled{[](Config& c) { c.local_size = 0; }, "--local-size"},
        Spoiled{[](Config& c) { c.load = "/m", c.layout = "rows"; }, "--layout"},
        Spoiled{[](Config& c) { c.load = "/m", c.layout = "fsdp:2"; }, "--layout fsdp:2"},
        Spoiled{[](Config& c) { c.load = "/m", c.layout = "@/none"; }, "--layout"},
        Spoiled{[](Config& c) { c.load = "/m", c.dtype = "I8"; }, "--dtype I8"},
        Spoiled{[](Config& c) { c.load_mode = "mine"; }, "--load-mode mine"},
        Spoiled{[](Config& c) { c.ready_when = "never"; }, "--ready-when never"},
        Spoiled{[](Config& c) { c.layout = "fsdp:1"; }, "--layout"},
        Spoiled{[](Config& c) { c.dtype = "BF16"; }, "--dtype"},
        Spoiled{[](Config& c) { c.ready_when = "loaded"; }, "--ready-when loaded"},
        Spoiled{[](Config& c) { c.reader_threads = 1025; }, "--reader-threads"},
        Spoiled{[](Config& c) { c.rendezvous = "host"; }, "--rendezvous host"},
        Spoiled{[](Config& c) { c.peer_port = 65536; }, "--peer-port 65536"},
        Spoiled{[](Config& c) { c.peer_port = 65530, c.local_size = 7; }, "--peer-port 65530: 7 "},
        Spoiled{[](Config& c) { c.health_port = "http"; }, "--health-port"},
        Spoiled{[](Config& c) { c.health_port = ""; }, "--health-port"},
        Spoiled{[](Config& c) { c.metrics = "65536"; }, "--metrics"},
        Spoiled{[](Config& c) { c.metrics = "sockets"; }, "--metrics"},
        Spoiled{[](Config& c) { c.rendezvous = ":1"; }, "--rendezvous"},
        Spoiled{[](Config& c) { c.rendezvous = "host:"; }, "--rendezvous"},
        Spoiled{[](Config& c) { c.heartbeat_interval = 0; }, "--heartbeat-interval"},
        Spoiled{[](Config& c) { c.heartbeat_timeout = 1.5; }, "--heartbeat-timeout 1.5"},
        Spoiled{[](Config& c) { c.heartbeat_timeout = 1e9; }, "--heartbeat-timeout"},
        Spoiled{[](Config& c) { c.heartbeat_timeout = std::nan(""); }, "--heartbeat-timeout"},
        Spoiled{[](Config& c) { c.log_level = "loud"; }, "--log-level loud"},
        Spoiled{[](Config& c) { c.segment_bytes = "big"; }, "\"big\""},
        Spoiled{[](Config& c) { c.memory_budget = "120%"; }, "\"120%\""},
        Spoiled{[](Config& c) { c.arena = "some"; }, "\"some\""},
        Spoiled{[](Config& c) { c.arena_idle = -1; }, "--arena-idle -1"},
        Spoiled{[](Config& c) { c.arena_idle = 1e12; }, "--arena-idle"},
        Spoiled{[](Config& c) { c.arena_idle = std::nan(""); }, "--arena-idle"},
        Spoiled{[](Config& c) { c.staging = "much"; }, "\"much\""},
        Spoiled{[](Config& c) { c.host_tier = "half"; }, "\"half\""},
        Spoiled{[](Config& c) { c.idle = "rest"; }, "--idle rest: use keep or release"},
        Spoiled{[](Config& c) { c.allow_uid = "1001"; }, "--allow-uid"},
        Spoiled{[](Config& c) { c.allow_gid = "no such group"; }, "--allow-gid no such group"},
        Spoiled{[](Config& c) { c.allow_gid = "7,8"; }, "It is one group, as the sockets have one"},
        Spoiled{[](Config& c) { c.allow_gid = "4294967295"; }, "--allow-gid 4294967295"},
        Spoiled{[](Config& c) { c.allow_gid = "7", c.allow_uid = "1001,nobody here"; },
                "--allow-uid nobody here"},
        Spoiled{[](Config& c) { c.allow_root = "models"; }, "--allow-root models"},
        Spoiled{[](Config& c) { c.allow_root = "/,/no such folder"; }, "--allow-root /no such folder"},
        Spoiled{[](Config& c) { c.allow_root = "/dev/null"; }, "--allow-root /dev/null"},
        Spoiled{[](Config& c) { c.reader = "me"; }, "me"},
        Spoiled{[](Config& c) { c.comm = "mail"; }, "mail"}));

// Settings that only GPUs support.
class SpoiledForHostMemory : public SpoiledConfig {};

TEST_P(SpoiledForHostMemory, IsRefusedThereAndNotWithAGpu) {
  Config config = Good();
  GetParam().spoil(config);
  config.memory = "cuda";
  EXPECT_OK(CheckConfig(config));
  config.memory = "host";
  EXPECT_THAT(CheckConfig(config), FailsWith(kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(CheckConfig(config), Says(GetParam().names));
}

INSTANTIATE_TEST_SUITE_P(
    Flags, SpoiledForHostMemory,
    ::testing::Values(Spoiled{[](Config& c) { c.comm = "nccl"; }, "--comm nccl"},
                      Spoiled{[](Config& c) { c.host_tier = "1GiB"; }, "--host-tier"},
                      Spoiled{[](Config& c) { c.host_tier = "10%"; }, "--host-tier"}));

}  // namespace
}  // namespace ckptd
