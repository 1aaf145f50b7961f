// Reads paths of small files from stdin, each ended by a NUL; prints a line for each: the error's
// name, or "ok" and the tensors, " <name>:<dtype>:<extent>,<extent>:<bytes>" with name and bytes in
// hexadecimal, the bytes as they lie where the index says. For compare_safetensors.py.
#include <fmt/format.h>

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/posix.h"
#include "common/base/status.h"
#include "common/source/open.h"

namespace ckptd {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;

// Piece after piece; what lies outside of the file is missing.
std::string BytesOf(const TensorEntry& tensor, const std::vector<std::string>& files) {
  std::string bytes;
  for (const Piece& piece : tensor.pieces) {
    const std::string& file = files[piece.file];
    if (piece.offset < file.size()) bytes += file.substr(piece.offset, piece.bytes);
  }
  return bytes;
}

absl::StatusOr<std::string> Describe(const CheckpointIndex& index) {
  std::vector<std::string> files;
  for (const SourceFile& file : index.files) {
    CKPTD_ASSIGN_OR_RETURN(std::string bytes, ReadSmallFile(file.path, kMaxFileBytes));
    files.push_back(std::move(bytes));
  }
  std::string out = "ok";
  for (const TensorEntry& tensor : index.tensors) {
    out += fmt::format(" {}:{}:{}:{}", absl::BytesToHexString(tensor.name), NameOf(tensor.dtype),
                       fmt::join(tensor.shape, ","),
                       absl::BytesToHexString(BytesOf(tensor, files)));
  }
  return out;
}

std::string Verdict(const std::string& path) {
  const absl::StatusOr<CheckpointIndex> index = OpenCheckpoint(path);
  const absl::StatusOr<std::string> out = index.ok() ? Describe(*index) : index.status();
  if (out.ok()) return *out;
  const Facts facts = FactsOf(out.status());
  const auto error = facts.find("error");
  return error == facts.end() ? ReasonOf(out.status()) : error->second;
}

}  // namespace
}  // namespace ckptd

int main() {
  std::string path;
  while (std::getline(std::cin, path, '\0')) std::cout << ckptd::Verdict(path) << "\n";
  return 0;
}
