#include "client/cli/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace ckptd::cli {
namespace {

TEST(Table, AlignsItsColumns) {
  Table table({{"NAME"}, {"SIZE", Table::Align::kRight}, {"LAYOUT"}});
  table.AddRow({"a", "1.5 GB", "fsdp:4"});
  table.AddRow({"longer", "12 B", ""});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(),
            "NAME      SIZE  LAYOUT\n"
            "a       1.5 GB  fsdp:4\n"
            "longer    12 B\n");
}

TEST(Table, CountsCharactersNotBytes) {
  Table table({{"NAME"}, {"X"}});
  table.AddRow({"é", "1"});
  table.AddRow({"ab", "2"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(), "NAME  X\né     1\nab    2\n");
}

TEST(Table, LetsNoCellSteerTheTerminal) {
  Table table({{"NAME"}});
  table.AddRow({"a\x1b[2J\nb"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(), "NAME\na\\x1b[2J\\nb\n");
}

TEST(PrintFields, LeavesEmptyOnesOut) {
  std::ostringstream out;
  PrintFields({{"name", "x"}, {"failure", ""}, {"a long key", "y\n"}}, out);
  EXPECT_EQ(out.str(), "name:        x\na long key:  y\\n\n");
}

}  // namespace
}  // namespace ckptd::cli
