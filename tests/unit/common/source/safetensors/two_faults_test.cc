// Of two faults of a file, the one that the reference's order of checks finds first is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/source/open.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/common/source/file_bytes.h"

namespace ckptd {
namespace {

struct Fault {
  std::string name;
  std::string file;  // its bytes
};

// One line of the table.
Fault ParseLine(const std::string& line) {
  std::istringstream in(line);
  Fault out;
  std::string stated, data, cut, json;
  in >> out.name >> stated >> data >> cut >> std::ws;
  std::getline(in, json);
  constexpr std::string_view kEscape = "\\xff";
  for (size_t at = json.find(kEscape); at != std::string::npos; at = json.find(kEscape)) {
    json.replace(at, kEscape.size(), "\xff");
  }
  out.file = FileBytes(json, std::string(std::stoul(data), '\0'));
  if (stated != "-") {
    const uint64_t length = std::stoull(stated);
    for (size_t i = 0; i < 8; ++i) out.file[i] = static_cast<char>(length >> (8 * i));
  }
  if (cut != "-") out.file.resize(std::stoul(cut));
  return out;
}

// Both faults, then the later one alone.
std::vector<std::pair<Fault, Fault>> ReadTable() {
  std::ifstream in(CKPTD_SOURCE_DIR "/tests/unit/common/source/safetensors/two_faults.txt");
  std::vector<Fault> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(ParseLine(line));
  }
  std::vector<std::pair<Fault, Fault>> pairs;
  for (size_t i = 0; i + 1 < lines.size(); i += 2) pairs.emplace_back(lines[i], lines[i + 1]);
  return pairs;
}

std::string NameOfFault(const std::string& file) {
  const TempFolder folder;
  const auto index = OpenCheckpoint(folder.Write("a.safetensors", file));
  return index.ok() ? "OK" : FactsOf(index.status())["error"];
}

class TwoFaults : public ::testing::TestWithParam<std::pair<Fault, Fault>> {};

TEST_P(TwoFaults, AreNamedByTheOneThatIsCheckedFirst) {
  const auto& [both, later] = GetParam();
  EXPECT_EQ(NameOfFault(both.file), both.name);
}

TEST_P(TwoFaults, AreNamedByTheOtherWhereTheFirstIsMended) {
  const auto& [both, later] = GetParam();
  EXPECT_EQ(NameOfFault(later.file), later.name);
}

std::string NameOfPair(const ::testing::TestParamInfo<std::pair<Fault, Fault>>& info) {
  return info.param.first.name + "Before" + info.param.second.name + std::to_string(info.index);
}
INSTANTIATE_TEST_SUITE_P(Table, TwoFaults, ::testing::ValuesIn(ReadTable()), NameOfPair);

}  // namespace
}  // namespace ckptd
