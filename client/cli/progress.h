// Shows a load's progress: a bar on a terminal, plain lines on other streams, nothing with
// --quiet.
#ifndef CKPTD_CLIENT_CLI_PROGRESS_H_
#define CKPTD_CLIENT_CLI_PROGRESS_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "client/cli/io.h"
#include "client/cpp/types.h"

namespace ckptd::cli {

// "TRANSFERRING  45%  6.8 GB of 15.2 GB  4.5 GB/s  ETA 2 s  slowest rank 3", and a slow file where there
// is one. `stage`: what stands for the stage; empty: its name.
std::string ProgressLine(const v1::Progress& progress, std::string_view stage = {});

// The same with a bar, as far as there is room for one, in at most `width` columns.
std::string ProgressBar(const v1::Progress& progress, size_t width, std::string_view stage = {});

// One load, or something else that is waited for. Not thread-safe.
class ProgressView {
 public:
  ProgressView(Io& io, bool quiet) : io_(io), quiet_(quiet) {}
  // Removes the bar, so that no half of it remains.
  ~ProgressView() { Clear(); }
  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  void Update(const v1::Progress& progress, std::string_view stage = {});
  // Something without a percentage: "waiting for rank 3".
  void Update(const std::string& what);
  // Removes the bar.
  void Clear();

 private:
  // The last column stays free, because some terminals wrap when it is written.
  size_t DrawnColumns() const;
  void Draw(const std::string& line);
  // Whether a line is due on a stream that keeps them: at each change of `what`, and now and then.
  bool IsDue(const std::string& what, std::chrono::seconds between);

  Io& io_;
  const bool quiet_;
  bool drawn_ = false;
  std::optional<std::string> last_what_;
  TimePoint last_line_;
};

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_PROGRESS_H_
