#include "client/cli/plan_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/text.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "common/source/piece.h"

namespace ckptd::cli {
namespace {

// Bins per bar: what lies in one bin is drawn as one.
constexpr size_t kBins = 500;
constexpr int kShades = 20;
constexpr int kRowHeight = 12;
constexpr size_t kMostTensorsDrawn = 4000;  // of one file

constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>ckptctl plan</title><style>
body{font:14px sans-serif;margin:2em;max-width:1200px}
h2{font-size:14px;margin:1.5em 0 .3em}
svg{display:block;width:100%;background:#f4f4f4}
table{border-collapse:collapse}td,th{padding:.1em .8em;text-align:right}
.key{display:inline-block;width:.9em;height:.9em;margin-right:.3em}
</style></head><body>
)";

std::string Html(std::string_view text) {
  std::string out;
  for (const char c : Escape(text)) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

// Neighbours differ: the golden angle.
std::string ColorOf(uint32_t rank) {
  return fmt::format("hsl({:.0f},70%,45%)", std::fmod(rank * 137.508, 360.0));
}

// The bytes in each bin, for one rank and one file.
using Bins = std::vector<double>;

// Spreads the bytes of a copy over what it reaches.
void AddCopy(const CopyOp& op, uint64_t file_bytes, Bins& bins) {
  const double bin = static_cast<double>(std::max<uint64_t>(file_bytes, 1)) / kBins;
  const auto begin = static_cast<double>(op.file_offset);
  const double end = std::max(begin + 1, static_cast<double>(op.file_end()));
  const double density = static_cast<double>(op.source_bytes()) / (end - begin);
  const auto first = static_cast<size_t>(begin / bin);
  for (size_t i = first; i < kBins && static_cast<double>(i) * bin < end; ++i) {
    const double from = std::max(begin, static_cast<double>(i) * bin);
    const double to = std::min(end, static_cast<double>(i + 1) * bin);
    bins[i] += (to - from) * density;
  }
}

// Shades of one line: 0 is nothing, kShades all bytes.
std::vector<int> ShadesOf(const Bins& bins, uint64_t file_bytes) {
  const double bin = static_cast<double>(std::max<uint64_t>(file_bytes, 1)) / kBins;
  std::vector<int> shades;
  for (const double bytes : bins) {
    const double share = std::min(1.0, bytes / bin);
    shades.push_back(bytes > 0 ? std::max(1, static_cast<int>(std::lround(share * kShades))) : 0);
  }
  return shades;
}

void DrawLine(uint32_t rank, int y, uint64_t bytes, const std::vector<int>& shades,
              std::string& out) {
  out += fmt::format("<g fill=\"{}\"><title>rank {}: {}</title>", ColorOf(rank), rank,
                     HumanBytes(bytes));
  for (size_t begin = 0; begin < shades.size();) {
    size_t end = begin + 1;
    while (end < shades.size() && shades[end] == shades[begin]) ++end;
    if (shades[begin] > 0) {
      out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" opacity=\"{:.2f}\"/>",
                         begin, y, end - begin, kRowHeight - 2,
                         static_cast<double>(shades[begin]) / kShades);
    }
    begin = end;
  }
  out += "</g>\n";
}

void DrawTensors(const CheckpointIndex& index, uint32_t file, std::string& out) {
  const double scale =
      static_cast<double>(kBins) / static_cast<double>(std::max<uint64_t>(index.files[file].bytes, 1));
  size_t drawn = 0;
  for (const TensorEntry& tensor : index.tensors) {
    for (const Piece& piece : tensor.pieces) {
      if (piece.file != file || piece.bytes == 0 || drawn == kMostTensorsDrawn) continue;
      const double width = static_cast<double>(SpanOf(piece, tensor.dtype)) * scale;
      out += fmt::format("<rect x=\"{:.3f}\" y=\"0\" width=\"{:.3f}\" height=\"{}\" fill=\"#{}\">"
                         "<title>{} {} {}</title></rect>\n",
                         static_cast<double>(piece.offset) * scale, width, kRowHeight - 2,
                         drawn++ % 2 == 0 ? "999" : "bbb", Html(tensor.name),
                         NameOf(tensor.dtype), JoinShape(tensor.shape));
    }
  }
}

struct RankBins {
  uint32_t rank = 0;
  std::vector<Bins> files;       // empty where it reads nothing
  std::vector<uint64_t> bytes;
};

absl::StatusOr<RankBins> BinsOf(const GroupPlan& plan, const PlannedRank& planned, size_t files) {
  const CheckpointIndex& index = plan.index();
  RankBins out{planned.rank, std::vector<Bins>(files), std::vector<uint64_t>(files, 0)};
  const PlannedRank* const one = &planned;
  for (const PlanWindow& window : plan.Windows({&one, 1}, std::numeric_limits<uint64_t>::max())) {
    CKPTD_ASSIGN_OR_RETURN(const RankPlan copies, plan.OpenWindow(window).PlanOf(planned));
    for (const CopyOp& op : copies.ops) {
      if (op.file >= files) continue;
      out.files[op.file].resize(kBins);
      out.bytes[op.file] += op.source_bytes();
      AddCopy(op, index.files[op.file].bytes, out.files[op.file]);
    }
  }
  return out;
}

void DrawFile(const CheckpointIndex& index, uint32_t file, const std::vector<RankBins>& ranks,
              std::string& out) {
  const SourceFile& one = index.files[file];
  std::vector<const RankBins*> drawn;
  for (const RankBins& rank : ranks) {
    if (!rank.files[file].empty()) drawn.push_back(&rank);
  }
  if (drawn.empty()) return;
  const auto rows = static_cast<int>(drawn.size()) + 1;
  out += fmt::format("<h2>{} ({})</h2>\n<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" "
                     "height=\"{}\">\n",
                     Html(TextOfPath(one.path)), HumanBytes(one.bytes), kBins, rows * kRowHeight,
                     rows * kRowHeight);
  DrawTensors(index, file, out);
  int y = kRowHeight;
  for (const RankBins* rank : drawn) {
    DrawLine(rank->rank, y, rank->bytes[file], ShadesOf(rank->files[file], one.bytes), out);
    y += kRowHeight;
  }
  out += "</svg>\n";
}

void DrawTable(std::span<const PlannedRank> ranks, std::string& out) {
  out += "<table><tr><th>rank</th><th>tensors</th><th>bytes</th><th>memory</th></tr>\n";
  for (const PlannedRank& rank : ranks) {
    out += fmt::format("<tr><td><span class=\"key\" style=\"background:{}\"></span>{}</td><td>{}</td>"
                       "<td>{}</td><td>{}</td></tr>\n",
                       ColorOf(rank.rank), rank.rank, rank.tensors, HumanBytes(rank.tensor_bytes),
                       HumanBytes(rank.slab_bytes));
  }
  out += "</table>\n";
}

}  // namespace

absl::StatusOr<std::string> PlanHtml(const GroupPlan& plan, const std::string& layout) {
  const CheckpointIndex& index = plan.index();
  const size_t files = std::min(index.files.size(), kMostFilesDrawn);
  const size_t count = std::min(plan.ranks().size(), kMostRanksDrawn);
  std::string out(kHead);
  out += fmt::format("<h1>{}</h1>\n<p>layout {}, {}</p>\n", Html(TextOfPath(index.source)),
                     Html(Shorten(layout, 200)), Counted(plan.ranks().size(), "rank"));
  if (count < plan.ranks().size()) out += fmt::format("<p>The first {} are shown.</p>\n", count);
  if (files < index.files.size()) {
    out += fmt::format("<p>{} of {} files are shown.</p>\n", files, index.files.size());
  }
  std::vector<RankBins> ranks;
  for (size_t i = 0; i < count; ++i) {
    CKPTD_ASSIGN_OR_RETURN(RankBins bins, BinsOf(plan, plan.ranks()[i], files));
    ranks.push_back(std::move(bins));
  }
  DrawTable(std::span(plan.ranks()).first(count), out);
  for (uint32_t file = 0; file < files; ++file) DrawFile(index, file, ranks, out);
  return out + "</body></html>\n";
}

}  // namespace ckptd::cli
