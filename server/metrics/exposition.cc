#include "server/metrics/exposition.h"

#include <cmath>
#include <map>
#include <string_view>

#include <fmt/format.h>

namespace ckptd {
namespace {

constexpr std::string_view kEnd = "# EOF\n";
constexpr std::string_view kHelp = "# HELP ";

const char* NameOf(MetricType type) {
  switch (type) {
    case MetricType::kGauge: return "gauge";
    case MetricType::kCounter: return "counter";
    case MetricType::kHistogram: return "histogram";
  }
  return "unknown";
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

void WriteHeader(const MetricSpec& spec, TextFormat format, std::string& out) {
  std::string name = spec.name;
  const bool open = format == TextFormat::kOpenMetrics;
  if (!open && spec.type == MetricType::kCounter) name += "_total";
  out += fmt::format("{}{} {}\n# TYPE {} {}\n", kHelp, name, spec.help, name, NameOf(spec.type));
  if (open && *spec.unit != '\0') out += fmt::format("# UNIT {} {}\n", name, spec.unit);
}

void WriteSample(const MetricSpec& spec, const Sample& sample, const Labels& common, std::string& out) {
  out += spec.name + sample.suffix;
  char before = '{';
  for (const Labels* labels : {&common, &sample.labels}) {
    for (const auto& [name, value] : *labels) {
      out += before + name + '=' + Quoted(value);
      before = ',';
    }
  }
  out += fmt::format("{} {}\n", before == ',' ? "}" : "", Number(sample.value));
}

// The lines that begin with # at the start of `text`.
size_t HeaderBytes(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size() && text[bytes] == '#') {
    const size_t end = text.find('\n', bytes);
    bytes = end == std::string_view::npos ? text.size() : end + 1;
  }
  return bytes;
}

// The first family of `text`: its header and its samples.
std::string_view FirstFamily(std::string_view text) {
  const size_t next = text.find(fmt::format("\n{}", kHelp));
  return next == std::string_view::npos ? text : text.substr(0, next + 1);
}

}  // namespace

const char* ContentType(TextFormat format) {
  return format == TextFormat::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

std::string WriteMetrics(const std::vector<Family>& families, const Labels& common, TextFormat format) {
  std::string out;
  for (const Family& family : families) {
    WriteHeader(family.spec, format, out);
    for (const Sample& sample : family.samples) WriteSample(family.spec, sample, common, out);
  }
  if (format == TextFormat::kOpenMetrics) out += kEnd;
  return out;
}

std::string MergeMetrics(const std::vector<std::string>& texts, TextFormat format) {
  std::vector<std::string_view> order;                  // headers, as they come first
  std::map<std::string_view, std::string> samples;      // by header
  for (const std::string_view whole : texts) {
    std::string_view text = whole;
    if (text.ends_with(kEnd)) text.remove_suffix(kEnd.size());
    while (text.starts_with(kHelp)) {
      const std::string_view family = FirstFamily(text);
      const std::string_view header = family.substr(0, HeaderBytes(family));
      const auto [found, is_new] = samples.try_emplace(header);
      if (is_new) order.push_back(header);
      found->second += family.substr(header.size());
      text.remove_prefix(family.size());
    }
  }
  std::string out;
  for (const std::string_view header : order) {
    out += header;
    out += samples[header];
  }
  if (format == TextFormat::kOpenMetrics) out += kEnd;
  return out;
}

}  // namespace ckptd
