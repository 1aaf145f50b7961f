#include "common/base/logging.h"

#include <spdlog/details/os.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "common/base/escape.h"
#include "common/base/line_writer.h"

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

// Never waits for the reader: a blocked log must not block the process.
class Sink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Takes what stderr is now.
  void Reopen() {
    const std::lock_guard<std::mutex> lock(mutex_);
    writer_ = LineWriter(STDERR_FILENO);
    color_ = ColorFits();
  }

  // A line without time and level.
  void Plain(std::string_view line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Take(line);
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override { Take(Format(message)); }
  void flush_() override {}

 private:
  void Take(std::string_view line) {
    if (dropped_ > 0) {
      const std::string said =
          fmt::format("{} {} dropped: there was no room for more", dropped_,
                      dropped_ == 1 ? "line was" : "lines were");
      const spdlog::details::log_msg message("ckptd", spdlog::level::warn, said);
      if (writer_.Write(Format(message))) dropped_ = 0;
    }
    if (dropped_ > 0 || !writer_.Write(line)) ++dropped_;
  }

  std::string Format(const spdlog::details::log_msg& message) {
    constexpr std::array<std::string_view, 7> kColors = {
        "\033[37m", "\033[36m", "\033[32m", "\033[33m\033[1m", "\033[31m\033[1m", "", ""};
    message.color_range_start = 0;
    message.color_range_end = 0;
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (color_ && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, "\033[m");
      line.insert(message.color_range_start, kColors[static_cast<size_t>(message.level)]);
    }
    return line;
  }

  static bool ColorFits() {
    return spdlog::details::os::in_terminal(stderr) && spdlog::details::os::is_color_terminal();
  }

  LineWriter writer_{STDERR_FILENO};
  bool color_ = ColorFits();
  uint64_t dropped_ = 0;  // not reported yet
};

// Both are leaked on purpose, because threads may log while statics are destroyed.
const std::shared_ptr<Sink>& StderrSink() {
  static auto* const sink = new std::shared_ptr<Sink>(std::make_shared<Sink>());
  return *sink;
}

spdlog::logger& Logger() {
  static auto* const logger =
      new std::shared_ptr<spdlog::logger>(std::make_shared<spdlog::logger>("ckptd", StderrSink()));
  return **logger;
}

}  // namespace

void InitLogging(std::string_view who, LogLevel level) {
  Logger().set_pattern(fmt::format("%Y-%m-%dT%H:%M:%S.%e %^%l%$ {} %v", who));
  Logger().set_level(spdlog::level::trace);
  SetLogLevel(level);
}

void ReopenLog() { StderrSink()->Reopen(); }

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
  Logger().log(ToSpdlog(level), "{}", Escape(line));
}

void PlainLine(std::string_view line) { StderrSink()->Plain(Escape(line) + "\n"); }

}  // namespace ckptd
