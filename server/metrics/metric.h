// Metrics as plain values, and what counts them. No daemon is known here.
#ifndef CKPTD_SERVER_METRICS_METRIC_H_
#define CKPTD_SERVER_METRICS_METRIC_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"

namespace ckptd {

enum class MetricType : uint8_t { kGauge, kCounter, kHistogram };

// What a family of metrics is called. Counters without "_total", which the text adds.
struct MetricSpec {
  const char* name;
  MetricType type;
  const char* unit;  // the end of the name: "seconds", "bytes"; empty: a count
  const char* help;
};

using Labels = std::vector<std::pair<std::string, std::string>>;

struct Sample {
  std::string suffix;  // of the name: "", "_total", "_bucket", "_sum", "_count"
  Labels labels;
  double value = 0;
};

struct Family {
  MetricSpec spec;
  std::vector<Sample> samples;
};

// A family with one sample of those labels.
Family GaugeOf(const MetricSpec& spec, double value, Labels labels = {});

// A family has at most this many sets of labels. More are counted together, under the values "other".
inline constexpr size_t kMostLabelSets = 256;

// Thread-safe.
class Counter {
 public:
  explicit Counter(const MetricSpec& spec) : spec_(spec) {}
  void Add(const Labels& labels, double value);
  Family Collect() const;

 private:
  const MetricSpec spec_;
  mutable Mutex mutex_;
  std::map<Labels, double> values_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe.
class Histogram {
 public:
  // `bounds` ascend: the largest value of each bucket. One for all others is added.
  Histogram(const MetricSpec& spec, std::vector<double> bounds)
      : spec_(spec), bounds_(std::move(bounds)) {}
  void Observe(const Labels& labels, double value);
  Family Collect() const;

 private:
  struct Counts {
    std::vector<uint64_t> buckets;
    double sum = 0;
  };
  const MetricSpec spec_;
  const std::vector<double> bounds_;
  mutable Mutex mutex_;
  std::map<Labels, Counts> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_METRICS_METRIC_H_
