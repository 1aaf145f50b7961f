#include "client/cli/table.h"

#include <algorithm>

#include "client/cli/text.h"
#include "common/base/escape.h"

namespace ckptd::cli {
namespace {

std::string Aligned(const std::string& cell, size_t width, Table::Align align) {
  const size_t columns = Columns(cell);
  const std::string gap(width > columns ? width - columns : 0, ' ');
  return align == Table::Align::kRight ? gap + cell : cell + gap;
}

void PrintLine(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
               const std::vector<Table::Column>& columns, std::ostream& out) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += "  ";
    line += Aligned(cells[i], widths[i], columns[i].align);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out << line << '\n';
}

}  // namespace

void Table::AddRow(const std::vector<std::string>& cells) {
  std::vector<std::string> row;
  row.reserve(columns_.size());
  for (const std::string& cell : cells) row.push_back(Escape(cell));
  row.resize(columns_.size());
  rows_.push_back(std::move(row));
}

void Table::Print(std::ostream& out) const {
  std::vector<std::string> titles;
  std::vector<size_t> widths;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    widths.push_back(Columns(column.title));
  }
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Columns(row[i]));
  }
  PrintLine(titles, widths, columns_, out);
  for (const auto& row : rows_) PrintLine(row, widths, columns_, out);
}

void PrintFields(const std::vector<std::pair<std::string, std::string>>& fields,
                 std::ostream& out) {
  size_t width = 0;
  for (const auto& field : fields) {
    if (!field.second.empty()) width = std::max(width, field.first.size());
  }
  for (const auto& field : fields) {
    if (field.second.empty()) continue;
    out << field.first << ':' << std::string(width - field.first.size() + 2, ' ')
        << Escape(field.second) << '\n';
  }
}

}  // namespace ckptd::cli
