// Logging: one line per state change, with rank, checkpoint and duration. spdlog
// stays behind this header; lines go to stderr, and nothing waits for who reads it:
// lines that find no room are dropped, and counted in the next one that does.
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

// Thread-safe. SetLogLevel returns the level there was.
LogLevel SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
bool ParseLogLevel(std::string_view text, LogLevel& level);
std::string_view NameOf(LogLevel level);

void LogLine(LogLevel level, std::string_view line);

// A line as it is, whatever the level. Does not wait either.
void PlainLine(std::string_view line);

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level >= GetLogLevel()) LogLine(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_LOGGING_H_
