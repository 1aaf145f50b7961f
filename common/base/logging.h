// Logging: one line per state change, with rank, checkpoint and duration. Only logging.cc knows
// spdlog. Lines go to stderr, and nothing waits for the reader. A line that finds no room is
// dropped, and the next one says how many were.
#ifndef CKPTD_COMMON_BASE_LOGGING_H_
#define CKPTD_COMMON_BASE_LOGGING_H_

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace ckptd {

enum class LogLevel : int { kTrace, kDebug, kInfo, kWarn, kError, kOff };

// Sets the fields that begin each line ("rank 2"). Call once, before logging.
void InitLogging(std::string_view who, LogLevel level);

// Lines go to what stderr is now, after this process has replaced it.
void ReopenLog();

// Thread-safe. SetLogLevel returns the level there was.
LogLevel SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
bool ParseLogLevel(std::string_view text, LogLevel& level);
std::string_view NameOf(LogLevel level);

void LogLine(LogLevel level, std::string_view line);

// Writes a line unchanged, whatever the level. Does not wait either.
void PlainLine(std::string_view line);

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level >= GetLogLevel()) LogLine(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_LOGGING_H_
