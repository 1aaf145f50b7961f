// Logs how each load ended, and how long its stages took.
#ifndef CKPTD_SERVER_LOAD_LOAD_LOG_H_
#define CKPTD_SERVER_LOAD_LOAD_LOG_H_

#include <string>

#include "server/protocol/load_observer.h"

namespace ckptd {

// "loaded 297.0 MB in 1.21 s (opening 0.01, planning 0.02, transferring 1.10)", or where it failed.
std::string DescribeEnd(const absl::Status& status, const Progress& last);

class LoadLog final : public LoadObserver {
 public:
  void OnProgress(const std::string&, const Progress&) override {}
  void OnEnded(const std::string& name, const absl::Status& status, const Progress& last) override;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_LOAD_LOG_H_
