#include "common/source/pickle/pickle.h"

#include "common/source/pickle/interpreter.h"

namespace ckptd::pickle {

absl::StatusOr<Parsed> Parse(std::span<const std::byte> bytes, const Limits& limits) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return Interpreter(text, limits).Run();
}

}  // namespace ckptd::pickle
