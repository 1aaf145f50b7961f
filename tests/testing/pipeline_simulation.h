// Discrete events: pieces of work that queue for servers of given rates.
#ifndef CKPTD_TESTS_TESTING_PIPELINE_SIMULATION_H_
#define CKPTD_TESTS_TESTING_PIPELINE_SIMULATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace ckptd {

// Serves pieces of work one after the other, as they arrive.
struct RateServer {
  double rate = 0;  // bytes per second; 0: at once
  double free_at = 0;
};

// Events run in the order of their times; events of the same time in the order of their creation.
class PipelineSimulation {
 public:
  struct Stage {
    RateServer* server = nullptr;
    uint64_t bytes = 0;
  };

  // Begins a piece that passes these stages from now on. Calls `then` at the end.
  void Begin(std::vector<Stage> stages, std::function<void()> then) {
    Push(now_, {std::move(stages), 0, std::move(then)});
  }
  // Runs until nothing is left. Returns the seconds.
  double Run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      Advance(*event.piece);
    }
    return now_;
  }

 private:
  struct Piece {
    std::vector<Stage> stages;
    size_t at = 0;
    std::function<void()> then;
  };
  struct Event {
    double at = 0;
    uint64_t number = 0;
    std::shared_ptr<Piece> piece;
    bool operator<(const Event& other) const {
      return std::tie(at, number) > std::tie(other.at, other.number);
    }
  };

  void Push(double at, Piece piece) {
    events_.push({at, ++number_, std::make_shared<Piece>(std::move(piece))});
  }
  void Advance(Piece& piece) {
    if (piece.at == piece.stages.size()) return piece.then();
    const Stage stage = piece.stages[piece.at++];
    double end = now_;
    if (stage.server->rate > 0 && stage.bytes > 0) {
      stage.server->free_at = std::max(stage.server->free_at, now_) +
                              static_cast<double>(stage.bytes) / stage.server->rate;
      end = stage.server->free_at;
    }
    Push(end, std::move(piece));
  }

  std::priority_queue<Event> events_;
  uint64_t number_ = 0;
  double now_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_PIPELINE_SIMULATION_H_
