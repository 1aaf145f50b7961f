// The seam through which loads are observed. Clients' progress comes through it; metrics and traces
// are further observers. The rooms of the load include no metrics library.
#ifndef CKPTD_SERVER_PROTOCOL_LOAD_OBSERVER_H_
#define CKPTD_SERVER_PROTOCOL_LOAD_OBSERVER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/protocol/domain.h"

namespace ckptd {

// Called by the leader, on any of its threads, outside of locks. Implementations do not block and
// do not fail.
class LoadObserver {
 public:
  virtual ~LoadObserver() = default;
  // How far the load of that checkpoint has come: at each change of its stage, and some times a
  // second while bytes move.
  virtual void OnProgress(const std::string& name, const Progress& progress) = 0;
  // The load has ended with `status`; `last`: its progress by then, with the time of each stage.
  virtual void OnEnded(const std::string& name, const absl::Status& status,
                       const Progress& last) = 0;
};

// Tells several observers, in their order. They outlive it.
class LoadObservers final : public LoadObserver {
 public:
  explicit LoadObservers(std::vector<LoadObserver*> observers) : observers_(std::move(observers)) {}

  void OnProgress(const std::string& name, const Progress& progress) override {
    for (LoadObserver* one : observers_) one->OnProgress(name, progress);
  }
  void OnEnded(const std::string& name, const absl::Status& status,
               const Progress& last) override {
    for (LoadObserver* one : observers_) one->OnEnded(name, status, last);
  }

 private:
  const std::vector<LoadObserver*> observers_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_PROTOCOL_LOAD_OBSERVER_H_
