// Metrics as text, for Prometheus: its text format 0.0.4 and OpenMetrics 1.0.
#ifndef CKPTD_SERVER_METRICS_EXPOSITION_H_
#define CKPTD_SERVER_METRICS_EXPOSITION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/metrics/metric.h"

namespace ckptd {

enum class TextFormat : uint8_t { kPrometheus, kOpenMetrics };
// For the header Content-Type.
const char* ContentType(TextFormat format);

// The text of all families, each sample with the labels in `common` first.
std::string WriteMetrics(const std::vector<Family>& families, const Labels& common, TextFormat format);

// One text of several that WriteMetrics made in one format: the samples of a family stand together.
std::string MergeMetrics(const std::vector<std::string>& texts, TextFormat format);

}  // namespace ckptd

#endif  // CKPTD_SERVER_METRICS_EXPOSITION_H_
