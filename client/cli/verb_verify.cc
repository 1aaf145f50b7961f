#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "client/cli/exit_codes.h"
#include "client/cli/json_views.h"
#include "client/cli/offline.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/checkpoint/open.h"

namespace ckptd::cli {
namespace {

constexpr Timeout kVerifyTimeout{600'000};
constexpr size_t kMaxNamesInError = 3;

struct Options {
  std::string target;
  bool attached = false;
};

// A path has a slash at its start or a file behind it; a checkpoint's name has
// neither, except for the prefix of all names.
bool IsPath(const std::string& target) {
  if (target.substr(0, 12) == "checkpoints/") return false;
  std::error_code ignored;
  return target.front() == '/' || target.front() == '.' ||
         target.find('/') != std::string::npos || std::filesystem::exists(target, ignored) ||
         std::filesystem::path(target).extension() == ".safetensors";
}

// The digests again, over the bytes this process itself has mapped.
absl::StatusOr<VerifyResult> VerifyAttached(Client& client, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(const Shard shard, client.Acquire(name));
  VerifyResult result;
  for (const ShardTensor& tensor : shard.tensors()) {
    if (!tensor.digest.has_value()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDigests,
                       fmt::format("verifying {}: it was loaded without digests; load it with "
                                   "--digest on",
                                   name),
                       {{"checkpoint", name}});
    }
    ++result.tensor_count;
    result.bytes += tensor.bytes;
    const std::byte* const end = tensor.data + tensor.padded_bytes;
    const bool padding_is_zero = std::all_of(tensor.data + tensor.bytes, end,
                                             [](std::byte b) { return b == std::byte{0}; });
    if (TensorDigest({tensor.data, tensor.bytes}) != *tensor.digest || !padding_is_zero) {
      result.mismatched.push_back(tensor.name);
    }
  }
  return result;
}

absl::StatusOr<VerifyResult> VerifyFiles(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const CheckpointIndex index, OpenCheckpoint(path));
  CKPTD_RETURN_IF_ERROR(CheckUnchanged(index));
  const SourceInfo source = ToSourceInfo(index);
  VerifyResult result;
  result.tensor_count = source.tensor_count;
  result.bytes = source.tensor_bytes;
  return result;
}

absl::Status Mismatch(const std::string& what, const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNamesInError);
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(shown);
  std::string list = fmt::format("{}", fmt::join(names.begin(), end, ", "));
  if (shown < names.size()) list += fmt::format(" and {} more", names.size() - shown);
  return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                   fmt::format("verifying {}: {} tensor{} no longer have the bytes that were "
                               "loaded: {}; unload it and load it again",
                               what, names.size(), names.size() == 1 ? "" : "s", list),
                   {{"checkpoint", what}, {"mismatched", std::to_string(names.size())}});
}

struct Verified {
  std::string what;
  std::string how;
  VerifyResult result;
};

absl::StatusOr<Verified> Verify(const Options& options, Context& context) {
  Verified out;
  if (IsPath(options.target)) {
    if (options.attached) {
      return UsageError("--attached verifies a checkpoint that a daemon holds; name one of "
                        "`ckptctl list`, not a file");
    }
    out.what = options.target;
    out.how = "headers and sizes of the files";
    CKPTD_ASSIGN_OR_RETURN(out.result, VerifyFiles(options.target));
    return out;
  }
  out.what = CheckpointName(options.target);
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  if (options.attached) {
    out.how = "digests over the memory mapped here";
    CKPTD_ASSIGN_OR_RETURN(out.result, VerifyAttached(client, out.what));
  } else {
    out.how = "digests over the daemon's memory";
    CKPTD_ASSIGN_OR_RETURN(out.result, client.Verify(out.what, context.TimeoutOr(kVerifyTimeout)));
  }
  return out;
}

absl::StatusOr<int> Run(const Options& options, Context& context) {
  const absl::StatusOr<Verified> answer = Verify(options, context);
  if (absl::IsDataLoss(answer.status()) && IsPath(options.target)) {
    // Damaged files are what this verb looks for: not just any failure.
    context.PrintError(answer.status());
    return kExitMismatch;
  }
  CKPTD_RETURN_IF_ERROR(answer.status());
  const Verified& verified = *answer;
  const VerifyResult& result = verified.result;
  if (context.json()) {
    context.io.out << ToJson(result, verified.what, verified.how) << '\n';
  } else if (result.mismatched.empty() && !context.globals.quiet) {
    context.io.out << Escape(fmt::format("{}: {} tensors, {}: {} are right", verified.what,
                                         result.tensor_count, HumanBytes(result.bytes),
                                         verified.how))
                   << '\n';
  } else {
    for (const std::string& name : result.mismatched) context.io.out << Escape(name) << '\n';
  }
  if (!result.mismatched.empty()) return Mismatch(verified.what, result.mismatched);
  return kExitFine;
}

}  // namespace

void AddVerify(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "verify", "Check a loaded checkpoint's bytes, or the headers of files",
      "A checkpoint's digests are computed again and compared; exit code 5 and the names of the\n"
      "tensors say what differs. Of files, the headers and sizes are checked, without a daemon.\n\n"
      "Examples:\n"
      "  ckptctl verify checkpoints/3f9a12c4\n"
      "  ckptctl verify checkpoints/3f9a12c4 --attached\n"
      "  ckptctl verify /models/llama\n");
  auto options = std::make_shared<Options>();
  verb->add_option("TARGET", options->target, "A checkpoint's name, or the path of files")
      ->required()
      ->check([](const std::string& text) {
        return text.empty() ? std::string("TARGET is empty") : std::string();
      });
  verb->add_flag("--attached", options->attached,
                 "Map the shard here, as a trainer does, and check those bytes");
  verb->callback([options, &context] {
    context.action = [options, &context] { return Run(*options, context); };
  });
}

}  // namespace ckptd::cli
