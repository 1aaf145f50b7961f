// Runs ckptctl in-process, with captured streams and a fixed clock.
#ifndef CKPTD_TESTS_UNIT_CLIENT_CLI_CLI_FIXTURE_H_
#define CKPTD_TESTS_UNIT_CLIENT_CLI_CLI_FIXTURE_H_

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/cli.h"
#include "client/cli/exit_codes.h"
#include "client/cli/io.h"
#include "client/cli/output.pb.h"
#include "tests/unit/client/fake_fd_socket.h"

namespace ckptd::cli {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

// The message that was printed as JSON.
template <typename Message>
Message Parsed(const std::string& json) {
  Message out;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &out);
  EXPECT_TRUE(status.ok()) << status.ToString() << ": " << json;
  return out;
}

inline std::string ReasonIn(const std::string& json) {
  return Parsed<ErrorOutput>(json).error().reason();
}

class Runner {
 public:
  Runner() {
    // The machine's own variables must not influence a test.
    for (const char* name : {"CKPTD_ADDRESS", "CKPTD_TIMEOUT", "CKPTD_OUTPUT", "CKPTD_JOB",
                             "CKPTD_RUN_DIR", "SLURM_JOB_ID", "SLURM_PROCID", "RANK",
                             "LOCAL_RANK"}) {
      ::unsetenv(name);
    }
  }

  Outcome operator()(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    std::ostringstream err;
    Io io{out, err};
    io.err_terminal = terminal;
    io.interrupt = &interrupt;
    io.now = [] { return TimePoint(std::chrono::seconds(1'700'000'090)); };
    Outcome outcome;
    outcome.code = RunCli(arguments, io);
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }

  bool terminal = false;
  CancelToken interrupt;
};

// Sets a variable for the duration of a test.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { ::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* const name_;
};

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Writes a safetensors file with this header and `bytes` bytes of data.
inline void WriteSafetensors(const std::string& path, std::string header, size_t bytes) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file;
  for (int shift = 0; shift < 64; shift += 8) {
    file.push_back(static_cast<char>(header.size() >> shift));
  }
  WriteFile(path, file + header + std::string(bytes, '\x01'));
}

// Three tensors of 160 + 48 + 8 bytes, one with a name that would control a terminal.
inline void WriteTinyModel(const std::string& path) {
  WriteSafetensors(path,
                   R"({"__metadata__":{"format":"pt"},)"
                   R"("model.a.weight":{"dtype":"F32","shape":[10,4],"data_offsets":[0,160]},)"
                   R"("model.\u001b[31m":{"dtype":"BF16","shape":[8,3],"data_offsets":[160,208]},)"
                   R"("step":{"dtype":"I64","shape":[],"data_offsets":[208,216]}})",
                   216);
}

}  // namespace ckptd::cli

#endif  // CKPTD_TESTS_UNIT_CLIENT_CLI_CLI_FIXTURE_H_
