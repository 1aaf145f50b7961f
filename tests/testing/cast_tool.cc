// cast_tool FROM TO: casts the elements on standard input to standard output.
// The types are named as in a safetensors header: F16, BF16, F32 or F64.
#include <cstdio>
#include <optional>
#include <vector>

#include "common/cast/cast.h"
#include "common/source/dtype.h"

int main(int argc, char** argv) {
  const std::optional<ckptd::Dtype> from = argc == 3 ? ckptd::ParseDtype(argv[1]) : std::nullopt;
  const std::optional<ckptd::Dtype> to = argc == 3 ? ckptd::ParseDtype(argv[2]) : std::nullopt;
  if (!from || !to || !ckptd::IsCastable(*from) || !ckptd::IsCastable(*to)) {
    std::fputs("usage: cast_tool FROM TO, each of F16 BF16 F32 F64\n", stderr);
    return 2;
  }
  const size_t from_size = ckptd::BitsOf(*from) / 8;
  const size_t to_size = ckptd::BitsOf(*to) / 8;
  std::vector<std::byte> in(from_size << 16);
  std::vector<std::byte> out(to_size << 16);
  while (const size_t count = std::fread(in.data(), from_size, 1 << 16, stdin)) {
    ckptd::Cast(*from, *to, in.data(), out.data(), count);
    if (std::fwrite(out.data(), to_size, count, stdout) != count) return 1;
  }
  return 0;
}
