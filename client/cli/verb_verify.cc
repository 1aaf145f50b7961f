#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/manifest_file.h"
#include "client/cli/offline.h"
#include "client/cli/output.pb.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/digest.h"
#include "common/base/escape.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/manifest.h"
#include "common/source/open.h"

namespace ckptd::cli {
namespace {

constexpr Timeout kVerifyTimeout{600'000};
constexpr size_t kMaxNamesInError = 3;

struct Options {
  std::string target;
  bool attached = false;
  std::string manifest;        // compare files with it
  std::string write_manifest;  // write a manifest of the files to it
};

// The finding for files without a manifest.
constexpr char kFilesAlone[] =
    "headers and sizes of the files are right, and every byte can be read";

struct Verified {
  VerifyOutput output;
  bool compared = true;    // false: there was nothing to compare with
  int32_t world_size = 1;  // of the group that holds it
};

// A path starts with a slash, or has a file after one, or the dot or part of a file's name. A
// checkpoint's name has none of these, except for the slash after the common prefix.
bool IsPath(const std::string& target) {
  if (target.substr(0, 12) == "checkpoints/") return false;
  std::error_code ignored;
  return target.find_first_of("/.#") != std::string::npos ||
         std::filesystem::exists(target, ignored);
}

std::string TextOf(const VerifyOutput::Difference& one) {
  if (one.tensor().empty()) return fmt::format("{}: {}", one.file(), one.what());
  if (one.file().empty()) return fmt::format("{}: {}", one.tensor(), one.what());
  return fmt::format("{} in {}: {}", one.tensor(), one.file(), one.what());
}

void AddDifference(const std::string& tensor, const std::string& file, const std::string& what,
                   VerifyOutput& out) {
  VerifyOutput::Difference& added = *out.add_differences();
  added.set_tensor(MessageText(tensor));
  added.set_file(MessageText(file));
  added.set_what(MessageText(what));
  out.add_mismatched(tensor.empty() ? added.file() : added.tensor());
}

// Host memory is checked in place. A tensor in device memory is copied to the host first.
absl::StatusOr<bool> IsIntact(const Shard& shard, const ShardTensor& tensor) {
  std::span<const std::byte> bytes(tensor.data, tensor.padded_bytes);
  std::vector<std::byte> copy;
  if (!shard.device_uuid().empty()) {
    copy.resize(tensor.padded_bytes);
    CKPTD_RETURN_IF_ERROR(shard.Read(tensor, 0, copy));
    bytes = copy;
  }
  const auto padding = bytes.subspan(tensor.bytes);
  return TensorDigest(bytes.first(tensor.bytes)) == *tensor.digest &&
         std::all_of(padding.begin(), padding.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Computes the digests over the bytes that this process has mapped.
absl::StatusOr<v1::VerifyCheckpointResponse> VerifyAttached(Client& client,
                                                            const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(const Shard shard, client.Acquire(name));
  v1::VerifyCheckpointResponse out;
  CKPTD_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, client.Get(name));
  out.set_rank(checkpoint.rank());
  for (const ShardTensor& tensor : shard.tensors()) {
    if (!tensor.digest.has_value()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDigests,
                       fmt::format("verifying {}: it was loaded without digests; load it with "
                                   "--digest on",
                                   name),
                       {{"checkpoint", name}});
    }
    out.set_tensor_count(out.tensor_count() + 1);
    out.set_bytes(out.bytes() + tensor.bytes);
    CKPTD_ASSIGN_OR_RETURN(const bool right, IsIntact(shard, tensor));
    if (right) continue;
    out.add_mismatched(tensor.name);
    out.add_files();  // a shard's table has no file names
  }
  return out;
}

Verified OfFiles(const std::string& path, const std::string& how, const OpenedCheckpoint& opened) {
  Verified out;
  out.output.set_verified(MessageText(path));
  out.output.set_method(MessageText(how));
  out.output.set_rank(-1);
  out.output.set_tensor_count(opened.index.tensors.size());
  out.output.set_bytes(BytesOf(opened.index));
  for (const std::string& remark : opened.remarks) out.output.add_remarks(MessageText(remark));
  return out;
}

absl::StatusOr<Verified> VerifyFiles(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint opened, OpenNamed(path));
  CKPTD_RETURN_IF_ERROR(MakeManifest(opened.index).status());
  Verified out = OfFiles(path, kFilesAlone, opened);
  out.compared = false;
  return out;
}

absl::StatusOr<Verified> CompareWithManifest(const Options& options) {
  const absl::StatusOr<std::string> text = ReadSmallFile(options.manifest, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                     fmt::format("opening {}: there is no such file; name a manifest that `ckptctl "
                                 "verify --write-manifest` has written",
                                 options.manifest),
                     {{"file", options.manifest}});
  }
  CKPTD_RETURN_IF_ERROR(text.status());
  const absl::StatusOr<Manifest> kept = ParseManifest(*text);
  if (!kept.ok()) {
    return WithFact(WithContext(kept.status(), options.manifest), "file", options.manifest);
  }
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint opened, OpenNamed(options.target));
  CKPTD_ASSIGN_OR_RETURN(const Manifest now, MakeManifest(opened.index));
  Verified out =
      OfFiles(options.target, "digests of all bytes, compared with " + options.manifest, opened);
  for (const ManifestDifference& one : Compare(*kept, now)) {
    AddDifference(one.tensor, one.file, one.what, out.output);
  }
  return out;
}

// Everything that can be refused is checked before all bytes are read.
absl::StatusOr<Verified> KeepManifest(const Options& options, Context& context) {
  const std::string& target = options.write_manifest;
  CKPTD_ASSIGN_OR_RETURN(const OpenedCheckpoint opened, OpenNamed(options.target));
  const CheckpointIndex& index = opened.index;
  CKPTD_RETURN_IF_ERROR(CheckFileNames(index));
  if (!IsStdout(target)) CKPTD_RETURN_IF_ERROR(ManifestPath(index, target).status());
  CKPTD_ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest(index));
  if (IsStdout(target)) {
    context.io.out << ToJson(manifest);
  } else {
    // Checked again, because the folder may have changed while bytes were read.
    CKPTD_ASSIGN_OR_RETURN(const std::string path, ManifestPath(index, target));
    CKPTD_RETURN_IF_ERROR(WriteWhole(path, ToJson(manifest)));
  }
  Verified out = OfFiles(options.target, "digests of all bytes, written to " + target, opened);
  out.compared = false;
  return out;
}

absl::StatusOr<Verified> VerifyPath(const Options& options, Context& context) {
  if (options.attached) {
    return UsageError("--attached verifies a checkpoint that a daemon holds; name one of "
                      "`ckptctl list`, not a file");
  }
  if (!options.manifest.empty()) return CompareWithManifest(options);
  if (!options.write_manifest.empty()) return KeepManifest(options, context);
  return VerifyFiles(options.target);
}

absl::StatusOr<Verified> VerifyLoaded(const Options& options, Context& context) {
  if (!options.manifest.empty() || !options.write_manifest.empty()) {
    return UsageError("a manifest is of files; name their path, not a checkpoint");
  }
  const std::string name = CheckpointName(options.target);
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  const auto answer = options.attached
                          ? VerifyAttached(client, name)
                          : client.Verify(name, context.TimeoutOr(kVerifyTimeout));
  if (!options.attached && absl::IsNotFound(answer.status()) && name != options.target) {
    return WithContext(answer.status(), fmt::format("there is no file {}", options.target));
  }
  CKPTD_RETURN_IF_ERROR(answer.status());
  Verified out;
  out.output.set_verified(name);
  out.output.set_method(options.attached ? "digests over the memory mapped here"
                                         : "digests over the daemon's memory");
  out.output.set_rank(answer->rank());
  out.output.set_tensor_count(answer->tensor_count());
  out.output.set_bytes(answer->bytes());
  for (int i = 0; i < answer->mismatched_size(); ++i) {
    AddDifference(answer->mismatched(i), answer->files(i), "not the bytes that were loaded",
                  out.output);
  }
  // The result is printed even if the checkpoint has been unloaded meanwhile.
  const auto checkpoint = client.Get(name);
  if (checkpoint.ok()) out.world_size = checkpoint->world_size();
  return out;
}

std::string Listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNamesInError);
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(shown);
  std::string list = fmt::format("{}", fmt::join(names.begin(), end, ", "));
  if (shown < names.size()) list += fmt::format(" and {} more", names.size() - shown);
  return list;
}

absl::Status Mismatch(const VerifyOutput& output) {
  std::vector<std::string> texts;
  for (const VerifyOutput::Difference& one : output.differences()) texts.push_back(TextOf(one));
  const VerifyOutput::Difference& first = output.differences(0);
  Facts facts = {{"mismatched", std::to_string(output.mismatched_size())}};
  if (!first.file().empty()) facts["file"] = first.file();
  if (!first.tensor().empty()) facts["tensor"] = first.tensor();
  if (output.rank() < 0) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                     fmt::format("verifying {}: it differs from its manifest: {}; copy or download "
                                 "it again, or keep a new manifest if this was meant",
                                 output.verified(), Listed(texts)),
                     facts);
  }
  facts["checkpoint"] = output.verified();
  facts["rank"] = std::to_string(output.rank());
  return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                   fmt::format("verifying {} on rank {}: its memory has changed: {}; unload it and "
                               "load it again",
                               output.verified(), output.rank(), Listed(texts)),
                   facts);
}

// Files belong to no rank.
std::string RankSuffix(int32_t rank) { return rank < 0 ? "" : fmt::format(" of rank {}", rank); }

void PrintText(const Verified& verified, Context& context) {
  const VerifyOutput& output = verified.output;
  for (const VerifyOutput::Difference& one : output.differences()) {
    context.io.out << Escape(TextOf(one)) << '\n';
  }
  if (!output.ok() || context.globals.quiet) return;
  context.io.out << Escape(fmt::format(
                        "{}{}: {}, {}: {}{}{}{}", output.verified(), RankSuffix(output.rank()),
                        Counted(output.tensor_count(), "tensor"), HumanBytes(output.bytes()),
                        output.method(), verified.compared ? " are right" : "",
                        output.method() == kFilesAlone ? "; --manifest compares the bytes" : "",
                        OtherRanks(verified.world_size)))
                 << '\n';
  PrintRemarks({output.remarks().begin(), output.remarks().end()}, context.io.out);
}

absl::StatusOr<int> Run(const Options& options, Context& context) {
  const bool files = IsPath(options.target);
  absl::StatusOr<Verified> verified =
      files ? VerifyPath(options, context) : VerifyLoaded(options, context);
  if (files && absl::IsDataLoss(verified.status())) {
    // Damaged files are what this verb looks for, so they have an exit code of their own.
    context.PrintError(verified.status());
    return kExitMismatch;
  }
  CKPTD_RETURN_IF_ERROR(verified.status());
  VerifyOutput& output = verified->output;
  output.set_ok(output.differences().empty());
  // If the manifest is printed to stdout, nothing else is.
  if (!IsStdout(options.write_manifest)) {
    if (context.json()) {
      CKPTD_RETURN_IF_ERROR(PrintJson(output, context.io.out));
    } else {
      PrintText(*verified, context);
    }
  }
  if (!output.ok()) return Mismatch(output);
  return kExitFine;
}

}  // namespace

void AddVerify(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "verify", "Check a loaded checkpoint's bytes, or files",
      "A checkpoint's digests are computed again and compared; exit code 5, the names of the\n"
      "tensors and the files they were read from say what differs. They are of one rank's shard:\n"
      "--rank chooses whose. Of files of any format, headers and sizes are checked and every byte is\n"
      "read, without a daemon; with a manifest that was kept of them, or of what they were copied\n"
      "from, every byte is compared.\n\n"
      "Examples:\n"
      "  ckptctl verify checkpoints/3f9a12c4\n"
      "  ckptctl verify checkpoints/3f9a12c4 --attached\n"
      "  ckptctl verify /models/llama\n"
      "  ckptctl verify /models/llama --write-manifest llama.json\n"
      "  ckptctl verify /mnt/copy/llama --manifest llama.json\n");
  auto options = std::make_shared<Options>();
  verb->add_option("TARGET", options->target, "A checkpoint's name, or the path of files")
      ->required();
  verb->add_flag("--attached", options->attached,
                 "Map the shard here, as a trainer does, and check those bytes");
  CLI::Option* const kept = verb->add_option(
      "--manifest", options->manifest, "Compare every byte of the files with this manifest");
  verb->add_option("--write-manifest", options->write_manifest,
                   "Read the files and keep a digest of each file and tensor here; -: on stdout")
      ->excludes(kept);
  verb->callback([options, &context] {
    context.action = [options, &context] { return Run(*options, context); };
  });
}

}  // namespace ckptd::cli
