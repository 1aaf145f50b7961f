#include "server/daemon/command_line.h"

#include <cstring>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "server/daemon/environment.h"

namespace ckptd {
namespace {

constexpr char kAbout[] =
    "Checkpoint loader daemon for distributed training.\n"
    "\n"
    "One daemon runs beside each trainer process. Rank 0's daemon reads the checkpoint\n"
    "once and gives every other daemon only what its rank needs; trainers map their shard\n"
    "without a copy, and map it again within moments after a crash.\n"
    "\n"
    "  ckptd launch --nproc 4 -- torchrun --nproc-per-node 4 train.py   daemons, and a command\n"
    "  ckptd run                                               one daemon, as in a container\n"
    "  ckptctl load /models/my-model --layout replicate:1      once it runs\n"
    "\n"
    "The sockets lie in RUN_DIR/JOB (--run-dir, --job): rank-N.sock for trainers, rank-N.admin.sock\n"
    "for ckptctl. Trainers in other containers mount RUN_DIR at the same path, and the daemon mounts\n"
    "the folder of the checkpoints at the same path as they do.\n";

constexpr char kLaunchAbout[] =
    "Every key that `ckptd config` prints is a flag here, but for the rank and the sizes, which\n"
    "it gives to each daemon; `ckptd --help` explains them.\n"
    "Starts --nproc daemons and restarts those that end, in the version that it was started in:\n"
    "to upgrade, stop it and start the new one on every host. With a command after --, runs it\n"
    "with CKPTD_ADDRESS set, and ends when it ends, with its exit code; signals are passed on,\n"
    "and the third one kills it. No daemon that ends takes it along, however often it does:\n"
    "what trainers have attached to stays theirs. Without a command, a daemon that is given up\n"
    "(--max-restarts) ends all.\n"
    "\n"
    "Defaults come from variables of launchers and job frameworks. The first that is set counts:\n";

constexpr char kLaunchExamples[] =
    "Under MPI, the nodes are counted from the sizes of the world and of one node.\n"
    "--rendezvous is that host and port 29511. Its name may get its address late, or another one.\n"
    "\n"
    "  ckptd launch --nproc 8 -- torchrun --nproc-per-node 8 train.py\n"
    "  ckptd launch --nproc 8 --load /models/llama --dtype BF16 -- torchrun ...\n"
    "  ckptd launch --nproc 8 --detach --linger 15m\n"
    "  srun --ntasks-per-node=1 ckptd launch --nproc 8 --rendezvous $HEAD:29511";

// The defaults, without flags and file.
CommandLine DefaultLine() {
  CommandLine line;
  line.config = DefaultConfig(ReadEnvironment);
  const JobFacts facts = ReadJobFacts(ReadEnvironment);
  line.launch.nproc = facts.local_size.value_or(1);
  line.launch.nnodes = facts.nodes.value_or(1);
  line.launch.node_rank = facts.node_rank.value_or(0);
  return line;
}

void AddLinger(CLI::App& verb, double& seconds, const std::string& text) {
  verb.add_option("--linger", seconds, text)
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, double>{{"s", 1}, {"m", 60}, {"h", 3600}}))
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
}

void AddNodeRank(CLI::App& verb, LaunchOptions& options) {
  verb.add_option("--node-rank", options.node_rank, "Number of this node, from 0")
      ->capture_default_str();
}

void AddLaunchFlags(CLI::App& launch, LaunchOptions& options) {
  launch.add_option("--nproc", options.nproc, "Daemons on this node, one per trainer process")
      ->check(CLI::Range(1, static_cast<int>(kMaxProcesses)))
      ->capture_default_str();
  launch.add_option("--nnodes", options.nnodes, "Nodes of the job")
      ->check(CLI::Range(1, static_cast<int>(kMaxNodes)))
      ->capture_default_str();
  AddNodeRank(launch, options);
  launch.add_option("--max-restarts", options.max_restarts,
                    "Restarts in a row after which a daemon that keeps ending is given up; while a "
                    "command runs it is still tried every 10 s")
      ->capture_default_str();
  launch.add_option("--start-timeout", options.start_timeout,
                    "Seconds until the group must be complete")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  launch.add_flag("--keep", options.keep,
                  "Leave the keeper with all shards when this ends; the next launch of the job takes "
                  "them over");
  launch.add_flag("--detach", options.detach,
                  "Return once the daemons are ready, and keep them running in the background; "
                  "where they run already, return at once");
  AddLinger(launch, options.linger,
            "End the daemons when none has had a lease or a load for so long: 90s, 15m, 2h; 0: never");
  launch.add_option("command", options.command, "Command to run once the daemons are ready");
  launch.footer(kLaunchAbout + DescribeFactSources() + kLaunchExamples);
}

void AddKeepFlags(CLI::App& keep, KeepOptions& options) {
  keep.add_option("--socket", options.socket,
                  "Unix socket on which daemons find it (run-dir/job/keeper.sock if not given)");
  AddLinger(keep, options.linger, "End when nobody has been connected for so long: 90s, 15m, 2h; 0: never");
  keep.footer(
      "Holds the descriptors of shards and leases, so that a daemon that is killed or replaced has\n"
      "them again, without reading (--keeper SOCKET). `ckptd launch` starts one by itself. It has no\n"
      "settings but the run directory and the job.\n"
      "\n"
      "  ckptd keep --socket /run/ckptd/keeper.sock");
}

absl::Status UsageError(const CLI::App& app, const CLI::ParseError& error) {
  std::string what = error.what();
  if (dynamic_cast<const CLI::ConfigError*>(&error) != nullptr) {
    const std::string file = app.get_config_ptr()->as<std::string>();
    const std::string key = what.substr(what.find_last_of(' ') + 1);
    what = fmt::format("reading {}: there is no key \"{}\"; `ckptd config` prints every key", file,
                       key);
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr ||
             dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    what += "; the commands are run, launch, stop, keep, config and info";
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, what);
}

// Empty if `path` can be read to its end. /dev/zero has no end, and a FIFO may block.
std::string CheckConfigFile(const std::string& path) {
  constexpr size_t kMostBytes = 1 << 20;
  if (path.empty()) return {};
  return MessageOf(ReadSmallFile(path, kMostBytes).status());
}

// Made absolute, because daemons and trainers may have different working directories.
absl::StatusOr<std::string> AbsoluteRunDir(const std::string& given) {
  std::error_code error;
  const auto run_dir = std::filesystem::absolute(given, error);
  if (error) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                     fmt::format("checking --run-dir \"{}\": {}; name a folder", given,
                                 error.message()));
  }
  return run_dir.lexically_normal().string();
}

absl::StatusOr<std::string> AbsoluteSource(const std::string& given) {
  if (given.empty()) return given;
  const absl::StatusOr<std::string> source = AbsolutePath(given);
  if (source.ok()) return source;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   fmt::format("checking --load {}: {}", given, MessageOf(source.status())));
}

// Refuses flags that launch sets for each of its daemons. A config file may have them, because
// `ckptd config` prints them.
absl::Status CheckLaunchFlags(int argc, const char* const* argv) {
  for (int i = 1; i < argc && argv[i] != std::string_view("--"); ++i) {
    const std::string_view flag = std::string_view(argv[i]).substr(0, std::strcspn(argv[i], "="));
    if (flag != "--rank" && flag != "--world-size" && flag != "--local-size") continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                     fmt::format("reading {}: `ckptd launch` counts its daemons by itself; leave it "
                                 "out, and give --nproc, --nnodes and --node-rank",
                                 flag));
  }
  return absl::OkStatus();
}

// Corrects what the environment told by what the command line says.
absl::Status SettleFacts(const CLI::App& launch, const JobFacts& facts, LaunchOptions& options) {
  const auto given = [&launch](const char* flag) { return launch.get_option(flag)->count() > 0; };
  for (const auto& [fact, flag] : {std::pair(JobFact::kLocalSize, "--nproc"),
                                   std::pair(JobFact::kNodes, "--nnodes"),
                                   std::pair(JobFact::kNodeRank, "--node-rank")}) {
    const auto unclear = facts.unclear.find(fact);
    if (unclear == facts.unclear.end() || given(flag)) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                     fmt::format("reading {}: it is no number; give {}", unclear->second, flag));
  }
  const bool alone = options.nnodes == 1 && facts.node_rank_is_index && !given("--node-rank");
  if (alone) options.node_rank = 0;
  return absl::OkStatus();
}

}  // namespace

CommandLineParser::CommandLineParser() : line_(DefaultLine()), app_(kAbout, "ckptd") {
  app_.require_subcommand(1);
  app_.set_version_flag("--version", std::string("ckptd ") + CKPTD_VERSION);
  app_.set_config("--config", ReadEnvironment("CKPTD_CONFIG").value_or(""),
                  "TOML file with the keys of `ckptd config`; flags win over it, it wins over "
                  "CKPTD_* variables")
      ->check(CheckConfigFile);
  app_.allow_config_extras(CLI::config_extras_mode::error);
  run_ = app_.add_subcommand("run", "Run one daemon until SIGTERM or Ctrl-C");
  launch_ = app_.add_subcommand("launch", "Start and supervise the daemons of this node");
  stop_ = app_.add_subcommand("stop", "End the daemons that launch has started on this node");
  keep_ = app_.add_subcommand("keep", "Hold shards and leases while daemons are away");
  CLI::App* const show = app_.add_subcommand("config", "Print every key with its value here");
  info_ = app_.add_subcommand("info", "Print what a daemon would find on this machine");
  info_->footer(
      "Says which memory --memory means here and why, which GPUs and which NCCL there are.\n"
      "Starts nothing; `ckptctl info` asks a daemon that runs.\n"
      "\n"
      "  ckptd info --memory cuda");
  AddConfigFlags(app_, line_.config);
  for (CLI::App* sub : {run_, launch_, stop_, keep_, show, info_}) sub->fallthrough();
  run_->footer("Every key that `ckptd config` prints is a flag here; `ckptd --help` explains them.");
  AddLaunchFlags(*launch_, line_.launch);
  stop_->footer(
      "Ends the launcher of --job in --run-dir, in the background or not, and waits until its\n"
      "daemons and their keeper have ended, also one that was left by --keep. Trainers keep what\n"
      "they have attached to. Fine where there is none.\n"
      "\n"
      "  ckptd stop --job my-job");
  AddNodeRank(*stop_, line_.launch);
  AddKeepFlags(*keep_, line_.keep);
}

absl::StatusOr<CommandLine> CommandLineParser::Parse(int argc, const char* const* argv) {
  line_ = DefaultLine();
  try {
    app_.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help or --version
    std::ostringstream text;
    app_.exit(wanted, text, text);
    CommandLine line = line_;
    line.text = text.str();
    return line;
  } catch (const CLI::ParseError& error) {
    return UsageError(app_, error);
  }
  if (launch_->parsed()) {
    CKPTD_RETURN_IF_ERROR(CheckLaunchFlags(argc, argv));
    CKPTD_RETURN_IF_ERROR(SettleFacts(*launch_, ReadJobFacts(ReadEnvironment), line_.launch));
  }
  CommandLine line = line_;
  CKPTD_ASSIGN_OR_RETURN(line.config.run_dir, AbsoluteRunDir(line.config.run_dir));
  CKPTD_ASSIGN_OR_RETURN(line.config.load, AbsoluteSource(line.config.load));
  line.verb = run_->parsed()      ? CommandLine::Verb::kRun
              : launch_->parsed() ? CommandLine::Verb::kLaunch
               : stop_->parsed()   ? CommandLine::Verb::kStop
               : keep_->parsed()   ? CommandLine::Verb::kKeep
              : info_->parsed()   ? CommandLine::Verb::kInfo
                                  : CommandLine::Verb::kConfig;
  line.launch.rendezvous_given = app_.get_option("--rendezvous")->count() > 0;
  return line;
}

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  return CommandLineParser().Parse(argc, argv);
}

}  // namespace ckptd
