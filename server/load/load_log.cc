#include "server/load/load_log.h"

#include <chrono>

#include <fmt/format.h>

#include "common/base/logging.h"

namespace ckptd {

std::string DescribeEnd(const absl::Status& status, const Progress& last) {
  using Seconds = std::chrono::duration<double>;
  Seconds all{0};
  std::string stages;
  for (const auto& [stage, took] : last.stages) {
    all += took;
    if (took < std::chrono::milliseconds(1)) continue;
    stages += fmt::format("{}{} {:.3f}", stages.empty() ? "" : ", ", NameOf(stage),
                          Seconds(took).count());
  }
  const std::string megabytes = fmt::format("{:.1f} MB", static_cast<double>(last.bytes_done) / 1e6);
  return fmt::format("{} {} in {:.3f} s{}", status.ok() ? "loaded" : "failed after", megabytes,
                     all.count(), stages.empty() ? "" : fmt::format(" ({})", stages));
}

void LoadLog::OnEnded(const std::string& name, const absl::Status& status, const Progress& last) {
  Log(LogLevel::kInfo, "{}: {}", name, DescribeEnd(status, last));
}

}  // namespace ckptd
