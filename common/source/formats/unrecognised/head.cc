#include "common/source/formats/unrecognised/head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/base/escape.h"
#include "common/base/utf8.h"

namespace ckptd::unrecognised {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kDownloadAgain =
    "a server sent it in place of the file: download it again, with the access that it needs";
constexpr std::string_view kUnpack = "unpack it, and name what is in it";
constexpr std::string_view kFromTorch = "save the model by PyTorch or as safetensors";

struct Sign {
  size_t at = 0;
  std::string_view bytes;
  std::string_view what;
  std::string_view advice;
};

constexpr auto kSigns = std::to_array<Sign>({
    {0, "\x1f\x8b"sv, "compressed (gzip)", kUnpack},
    {0, "\x28\xb5\x2f\xfd"sv, "compressed (zstd)", kUnpack},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     "compressed (xz)", kUnpack},
    {0, "BZh"sv, "compressed (bzip2)", kUnpack},
    {0, "\x04\x22\x4d\x18"sv, "compressed (lz4)", kUnpack},
    {0, "7z\xbc\xaf\x27\x1c"sv, "an archive (7-Zip)", kUnpack},
    {0, "Rar!"sv, "an archive (RAR)", kUnpack},
    {257, "ustar"sv, "an archive (tar)", kUnpack},
    {0, "\x93NUMPY"sv, "a NumPy array (.npy)", kFromTorch},
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file, as Keras and TensorFlow write them", kFromTorch},
});

// Without white space and a byte order mark.
std::string_view Trimmed(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

// The beginning, in small letters.
std::string Lower(std::string_view text) {
  std::string out(text.substr(0, 32));
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

// The beginning for a sentence.
std::string Sample(std::string_view text) {
  constexpr size_t kShown = 80;
  const bool is_cut = text.size() > kShown;
  text = text.substr(0, kShown);
  text = text.substr(0, ValidUtf8Prefix(text));
  return Escape(text) + (is_cut ? " ..." : "");
}

bool IsText(std::string_view head) {
  // A character may be cut at the end.
  if (ValidUtf8Prefix(head) + 4 <= head.size()) return false;
  return std::none_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<uint8_t>(c);
    return (byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7f;
  });
}

uint8_t ByteAt(std::string_view bytes, size_t at) {
  return at < bytes.size() ? static_cast<uint8_t>(bytes[at]) : 0;
}

// So many letters as the bytes from `at` on say, which begin a name.
bool IsName(std::string_view head, size_t at, size_t length) {
  const std::string_view name = head.substr(std::min(at, head.size()), length);
  return length != 0 && name.size() == length && IsText(name);
}

// A map whose first key is text, as flax.serialization.to_bytes writes it.
bool IsMsgpack(std::string_view head) {
  const uint8_t map = ByteAt(head, 0);
  const bool is_small = map > 0x80 && map <= 0x8f;
  if (!is_small && map != 0xde && map != 0xdf) return false;
  const size_t key = is_small ? 1 : map == 0xde ? 3 : 5;
  const uint8_t text = ByteAt(head, key);
  if (text > 0xa0 && text <= 0xbf) return IsName(head, key + 1, text & 0x1f);
  return text == 0xd9 && IsName(head, key + 2, ByteAt(head, key + 1));
}

// ir_version, then the name of its producer.
bool IsOnnx(std::string_view head) {
  return ByteAt(head, 0) == 0x08 && ByteAt(head, 1) < 0x40 && ByteAt(head, 2) == 0x12 &&
         IsName(head, 4, ByteAt(head, 3));
}

}  // namespace

std::optional<Finding> FindText(std::string_view head) {
  if (head.starts_with("version https://git-lfs.github.com/")) {
    return Finding{"a Git LFS pointer, not the file itself", "run `git lfs pull` in its repository",
                   true};
  }
  const std::string_view text = Trimmed(head);
  const std::string begin = Lower(text);
  if (begin.starts_with("<!doctype html") || begin.starts_with("<html")) {
    return Finding{"an HTML page", std::string(kDownloadAgain), true};
  }
  if (begin.starts_with("<?xml") || begin.starts_with("<error")) {
    return Finding{fmt::format("an XML message ({})", Sample(text)), std::string(kDownloadAgain),
                   true};
  }
  if (!IsText(head)) return std::nullopt;
  if (begin.starts_with('{') || begin.starts_with('[')) {
    return Finding{fmt::format("JSON ({})", Sample(text)),
                   "name the checkpoint itself; if a server sent it in place of the file, download "
                   "that again",
                   true};
  }
  return Finding{fmt::format("text ({})", Sample(text)), "name the checkpoint itself", true};
}

std::optional<Finding> FindForeign(std::string_view head) {
  const auto sign = std::find_if(kSigns.begin(), kSigns.end(), [head](const Sign& one) {
    return head.size() > one.at && head.substr(one.at).starts_with(one.bytes);
  });
  if (sign != kSigns.end()) {
    return Finding{std::string(sign->what), std::string(sign->advice), false};
  }
  if (IsMsgpack(head)) return Finding{"msgpack, as Flax writes it", std::string(kFromTorch), false};
  if (IsOnnx(head)) return Finding{"an ONNX model", std::string(kFromTorch), false};
  return std::nullopt;
}

}  // namespace ckptd::unrecognised
