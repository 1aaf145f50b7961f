#include "server/metrics/metric.h"

#include <algorithm>

#include <fmt/format.h>

namespace ckptd {
namespace {

// The entry for those labels, or for "other" where there are too many.
template <typename T>
T& At(std::map<Labels, T>& all, const Labels& labels) {
  if (const auto at = all.find(labels); at != all.end()) return at->second;
  if (all.size() < kMostLabelSets) return all[labels];
  Labels other = labels;
  for (auto& [name, value] : other) value = "other";
  return all[other];
}

}  // namespace

Family GaugeOf(const MetricSpec& spec, double value, Labels labels) {
  return {spec, {{"", std::move(labels), value}}};
}

void Counter::Add(const Labels& labels, double value) {
  MutexLock lock(mutex_);
  At(values_, labels) += value;
}

Family Counter::Collect() const {
  Family family{spec_, {}};
  MutexLock lock(mutex_);
  for (const auto& [labels, value] : values_) family.samples.push_back({"_total", labels, value});
  return family;
}

void Histogram::Observe(const Labels& labels, double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  MutexLock lock(mutex_);
  Counts& counts = At(counts_, labels);
  counts.buckets.resize(bounds_.size() + 1);
  ++counts.buckets[static_cast<size_t>(bucket)];
  counts.sum += value;
}

Family Histogram::Collect() const {
  Family family{spec_, {}};
  MutexLock lock(mutex_);
  for (const auto& [labels, counts] : counts_) {
    uint64_t sum = 0;
    for (size_t i = 0; i < counts.buckets.size(); ++i) {
      sum += counts.buckets[i];
      Labels with = labels;
      with.emplace_back("le", i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf");
      family.samples.push_back({"_bucket", std::move(with), static_cast<double>(sum)});
    }
    family.samples.push_back({"_sum", labels, counts.sum});
    family.samples.push_back({"_count", labels, static_cast<double>(sum)});
  }
  return family;
}

}  // namespace ckptd
