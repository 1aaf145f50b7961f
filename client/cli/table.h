// Aligned columns for people. Cells are escaped here, so foreign names are safe.
#ifndef CKPTD_CLIENT_CLI_TABLE_H_
#define CKPTD_CLIENT_CLI_TABLE_H_

#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace ckptd::cli {

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell per column.
  void AddRow(const std::vector<std::string>& cells);
  // Prints titles, then rows, with two spaces between columns and none at the end of a line.
  void Print(std::ostream& out) const;

 private:
  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Prints "key:  value" lines with aligned values. Values are escaped. Empty values are left out.
void PrintFields(const std::vector<std::pair<std::string, std::string>>& fields,
                 std::ostream& out);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_TABLE_H_
