// Shows a load's progress: a bar on a terminal, plain lines on other streams, nothing with
// --quiet.
#ifndef CKPTD_CLIENT_CLI_PROGRESS_H_
#define CKPTD_CLIENT_CLI_PROGRESS_H_

#include <optional>
#include <string>

#include "client/cli/io.h"
#include "client/cpp/types.h"

namespace ckptd::cli {

// "TRANSFERRING  45%  6.8 GB of 15.2 GB  4.5 GB/s  ETA 2 s  slowest rank 3".
std::string ProgressLine(const v1::Progress& progress);

// The same with a bar, at most `width` columns.
std::string ProgressBar(const v1::Progress& progress, size_t width);

// One load. Not thread-safe.
class ProgressView {
 public:
  ProgressView(Io& io, bool quiet) : io_(io), quiet_(quiet) {}
  // Removes the bar, so that no half of it remains.
  ~ProgressView() { Clear(); }
  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  void Update(const v1::Progress& progress);
  // Removes the bar.
  void Clear();

 private:
  Io& io_;
  const bool quiet_;
  bool drawn_ = false;
  std::optional<v1::Stage> last_stage_;
  TimePoint last_line_;
};

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_PROGRESS_H_
