// ckptd: the checkpoint loader daemon.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "server/daemon/commands.h"

namespace {

constexpr char kAbout[] =
    "Checkpoint loader daemon for distributed training.\n"
    "\n"
    "One daemon runs beside each trainer process. Rank 0's daemon reads the checkpoint\n"
    "once and gives every other daemon only what its rank needs; trainers map their shard\n"
    "without a copy, and map it again within moments after a crash.\n"
    "\n"
    "  ckptd launch --nproc 4 -- torchrun --nproc-per-node 4 train.py\n";

std::string Environment(const char* name) {
  return ckptd::ReadEnvironment(name).value_or("");
}

void AddLaunchFlags(CLI::App& launch, ckptd::LaunchOptions& options) {
  const ckptd::JobFacts facts = ckptd::ReadJobFacts(ckptd::ReadEnvironment);
  options.nproc = facts.local_size.value_or(1);
  options.nnodes = facts.nodes.value_or(1);
  options.node_rank = facts.node_rank.value_or(0);
  launch.add_option("--nproc", options.nproc, "Daemons on this node, one per trainer process")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  launch.add_option("--nnodes", options.nnodes, "Nodes of the job")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  launch.add_option("--node-rank", options.node_rank, "Number of this node, from 0")
      ->capture_default_str();
  launch.add_option("--max-restarts", options.max_restarts,
                    "Restarts in a row after which a daemon that keeps ending is given up")
      ->capture_default_str();
  launch.add_option("--start-timeout", options.start_timeout,
                    "Seconds until the group must be complete")
      ->capture_default_str();
  launch.add_option("command", options.command, "Command to run once the daemons are ready");
  launch.footer(
      "Every key that `ckptd config` prints is a flag here; `ckptd --help` explains them.\n"
      "Starts --nproc daemons and restarts those that crash. With a command after --, runs it\n"
      "with CKPTD_ADDRESS set, and ends when it ends, with its exit code. Numbers that torchrun\n"
      "or Slurm have put into the environment are the defaults.\n"
      "\n"
      "  ckptd launch --nproc 8 -- torchrun --nproc-per-node 8 train.py\n"
      "  srun --ntasks-per-node=1 ckptd launch --nproc 8 --rendezvous $HEAD:29511");
}

int UsageError(const CLI::App& app, const CLI::ParseError& error) {
  std::string what = error.what();
  if (dynamic_cast<const CLI::ConfigError*>(&error) != nullptr) {
    const std::string file = app.get_config_ptr()->as<std::string>();
    const std::string key = what.substr(what.find_last_of(' ') + 1);
    what = fmt::format("reading {}: there is no key \"{}\"; `ckptd config` prints every key", file,
                       key);
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr ||
             dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    what += "; the commands are run, launch and config";
  }
  fmt::print(stderr, "ckptd: {}. See `ckptd --help`.\n", what);
  return ckptd::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(kAbout, "ckptd");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("ckptd ") + CKPTD_VERSION);
  app.set_config("--config", Environment("CKPTD_CONFIG"),
                 "TOML file with the keys of `ckptd config`; flags win over it, it wins over CKPTD_* variables");
  app.allow_config_extras(CLI::config_extras_mode::error);

  ckptd::Config config = ckptd::DefaultConfig(ckptd::ReadEnvironment);
  ckptd::LaunchOptions options;
  CLI::App& run = *app.add_subcommand("run", "Run one daemon until SIGTERM or Ctrl-C");
  CLI::App& launch = *app.add_subcommand("launch", "Start and supervise the daemons of this node");
  CLI::App& show = *app.add_subcommand("config", "Print every key with its value here");
  ckptd::AddConfigFlags(app, config);
  for (CLI::App* sub : {&run, &launch, &show}) sub->fallthrough();
  run.footer("Every key that `ckptd config` prints is a flag here; `ckptd --help` explains them.");
  AddLaunchFlags(launch, options);

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {
    return app.exit(wanted);  // help or version
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error);
  }
  // Daemons and trainers need not share a working directory.
  config.run_dir = std::filesystem::absolute(config.run_dir).lexically_normal().string();
  if (run.parsed()) return ckptd::RunCommand(config);
  if (launch.parsed()) {
    options.rendezvous_given = app.get_option("--rendezvous")->count() > 0;
    return ckptd::LaunchCommand(config, options);
  }
  for (const auto& [key, value] : ckptd::Describe(config)) fmt::print("{} = \"{}\"\n", key, value);
  return ckptd::kExitOk;
}
