#include "common/base/logging.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <memory>

namespace ckptd {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"trace", "debug", "info",
                                                    "warn",  "error", "off"};
std::atomic<LogLevel> g_level = LogLevel::kInfo;

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  constexpr std::array kLevels = {spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                                  spdlog::level::warn,  spdlog::level::err,   spdlog::level::off};
  return kLevels[static_cast<size_t>(level)];
}

spdlog::logger& Logger() {
  // Leaked on purpose: threads may log while statics are destroyed.
  static auto* const logger = new std::shared_ptr<spdlog::logger>(
      std::make_shared<spdlog::logger>("ckptd", std::make_shared<spdlog::sinks::stderr_color_sink_mt>()));
  return **logger;
}

}  // namespace

void InitLogging(std::string_view who, LogLevel level) {
  Logger().set_pattern(fmt::format("%Y-%m-%dT%H:%M:%S.%e %^%l%$ {} %v", who));
  Logger().set_level(spdlog::level::trace);
  Logger().flush_on(spdlog::level::trace);
  SetLogLevel(level);
}

LogLevel SetLogLevel(LogLevel level) { return g_level.exchange(level); }

LogLevel GetLogLevel() { return g_level.load(std::memory_order_relaxed); }

bool ParseLogLevel(std::string_view text, LogLevel& level) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) {
      level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

std::string_view NameOf(LogLevel level) { return kNames[static_cast<size_t>(level)]; }

void LogLine(LogLevel level, std::string_view line) {
  Logger().log(ToSpdlog(level), fmt::string_view(line.data(), line.size()));
}

}  // namespace ckptd
