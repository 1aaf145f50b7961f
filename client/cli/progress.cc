#include "client/cli/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/text.h"
#include "common/base/escape.h"

namespace ckptd::cli {
namespace {

constexpr std::chrono::seconds kBetweenLines{5};
constexpr std::chrono::seconds kBetweenReminders{30};
constexpr size_t kBarColumns = 24;
constexpr size_t kLeastBarColumns = 8;
constexpr int kMaxRanksShown = 8;

// A load that has just been accepted has no stage yet.
std::string StageName(v1::Stage stage, std::string_view given) {
  if (!given.empty()) return std::string(given);
  return stage == v1::STAGE_UNSPECIFIED ? "STARTING" : NameOf(stage);
}

double ShareOf(const v1::Progress& progress) {
  if (progress.bytes_total() == 0) return 0;
  const double share =
      static_cast<double>(progress.bytes_done()) / static_cast<double>(progress.bytes_total());
  return std::clamp(share, 0.0, 1.0);
}

std::string Waiting(const google::protobuf::RepeatedField<int32_t>& ranks) {
  const int shown = std::min(ranks.size(), kMaxRanksShown);
  const auto end = ranks.begin() + shown;
  std::string out = fmt::format("waiting for rank{} {}", ranks.size() > 1 ? "s" : "",
                                fmt::join(ranks.begin(), end, ", "));
  if (shown < ranks.size()) out += fmt::format(" and {} more", ranks.size() - shown);
  return out;
}

// The facts after the stage and the percentage.
std::string Details(const v1::Progress& progress) {
  std::string out;
  if (progress.bytes_total() > 0) {
    out += fmt::format("  {} of {}", HumanBytes(progress.bytes_done()),
                       HumanBytes(progress.bytes_total()));
  }
  if (progress.bytes_per_second() > 0 && progress.bytes_done() < progress.bytes_total()) {
    const auto left = static_cast<double>(progress.bytes_total() - progress.bytes_done());
    out += fmt::format("  {}  ETA {}", HumanRate(progress.bytes_per_second()),
                       HumanDuration(Seconds(left / progress.bytes_per_second())));
  }
  if (!progress.waiting_ranks().empty()) {
    out += "  " + Waiting(progress.waiting_ranks());
    if (!progress.no_memory().empty()) out += fmt::format(" ({})", Escape(progress.no_memory()));
    if (!progress.conflict().empty()) out += fmt::format(" ({})", Escape(progress.conflict()));
  } else if (progress.slowest_rank() >= 0 && progress.bytes_done() < progress.bytes_total()) {
    out += fmt::format("  slowest rank {}", progress.slowest_rank());
  }
  if (progress.has_slowest_file() && progress.bytes_done() < progress.bytes_total()) {
    const std::string& path = progress.slowest_file().path();
    out += fmt::format("  slow file {}", Escape(path.substr(path.rfind('/') + 1)));
  }
  return out;
}

}  // namespace

std::string ProgressLine(const v1::Progress& progress, std::string_view stage) {
  std::string out = StageName(progress.stage(), stage);
  if (progress.bytes_total() > 0) out += fmt::format("  {:.0f}%", ShareOf(progress) * 100);
  return out + Details(progress);
}

std::string ProgressBar(const v1::Progress& progress, size_t width, std::string_view stage) {
  if (progress.bytes_total() == 0) return Shorten(ProgressLine(progress, stage), width);
  const double share = ShareOf(progress);
  const std::string details = fmt::format("{:3.0f}%{}", share * 100, Details(progress));
  const std::string name = StageName(progress.stage(), stage);
  const size_t others = Columns(name) + Columns(details) + 4;
  // The facts come before the bar.
  const size_t room = std::min(kBarColumns, width - std::min(width, others));
  if (room < kLeastBarColumns) return Shorten(ProgressLine(progress, stage), width);
  const auto full = static_cast<size_t>(share * static_cast<double>(room));
  return fmt::format("{} [{}{}] {}", name, std::string(full, '#'), std::string(room - full, '.'),
                     details);
}

void ProgressView::Update(const v1::Progress& progress, std::string_view stage) {
  if (quiet_) return;
  if (io_.err_terminal) {
    Draw(ProgressBar(progress, DrawnColumns(), stage));
  } else if (IsDue(StageName(progress.stage(), stage), kBetweenLines)) {
    io_.err << ProgressLine(progress, stage) << std::endl;
  }
}

void ProgressView::Update(const std::string& what) {
  if (quiet_) return;
  if (io_.err_terminal) {
    Draw(Shorten(Escape(what), DrawnColumns()));
  } else if (IsDue(what, kBetweenReminders)) {
    io_.err << Escape(what) << std::endl;
  }
}

size_t ProgressView::DrawnColumns() const { return io_.width > 1 ? io_.width - 1 : 1; }

void ProgressView::Draw(const std::string& line) {
  io_.err << '\r' << line << "\x1b[K" << std::flush;
  drawn_ = true;
}

bool ProgressView::IsDue(const std::string& what, std::chrono::seconds between) {
  const TimePoint now = io_.now();
  if (last_what_ == what && now - last_line_ < between) return false;
  last_what_ = what;
  last_line_ = now;
  return true;
}

void ProgressView::Clear() {
  if (!drawn_) return;
  io_.err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace ckptd::cli
