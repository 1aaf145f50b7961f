#include "server/comm/nccl/environment.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

NcclEnvironment Clean(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return CleanNcclEnvironment(environment.data());
}

TEST(NcclEnvironment, WhatDescribesTheMachineIsKept) {
  const NcclEnvironment clean =
      Clean({"NCCL_SOCKET_IFNAME=eth0", "NCCL_IB_HCA=mlx5_0", "NCCL_DEBUG=", "PATH=/bin"});
  EXPECT_THAT(clean.kept,
              UnorderedElementsAre(Pair("NCCL_SOCKET_IFNAME", "eth0"),
                                   Pair("NCCL_IB_HCA", "mlx5_0"), Pair("NCCL_DEBUG", "")));
  EXPECT_THAT(clean.dropped, IsEmpty());
}

TEST(NcclEnvironment, WhatIsTheTrainersIsDropped) {
  const NcclEnvironment clean = Clean(
      {"NCCL_COMM_ID=10.0.0.1:1234", "NCCL_HOSTID=pod", "NCCL_MAX_CTAS=32", "NCCL_ALGO=Ring"});
  EXPECT_THAT(clean.dropped,
              ElementsAre("NCCL_ALGO", "NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_MAX_CTAS"));
  EXPECT_THAT(clean.kept, IsEmpty());
}

TEST(NcclEnvironment, TheDaemonsOwnIsAlwaysSet) {
  EXPECT_THAT(Clean({}).set,
              UnorderedElementsAre(Pair("NCCL_COMM_BLOCKING", "0"),
                                   Pair("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
                                   Pair("NCCL_NVLS_ENABLE", "0"), Pair("NCCL_RAS_ENABLE", "0")));
}

TEST(NcclEnvironment, ThePrefixPassesAnythingOnOverTheTrainersAndOurs) {
  const NcclEnvironment clean =
      Clean({"CKPTD_NCCL_ALGO=Tree", "NCCL_ALGO=Ring", "CKPTD_NCCL_NVLS_ENABLE=1",
             "NCCL_NET=Socket", "CKPTD_NCCL_NET=IB"});
  EXPECT_EQ(clean.set.at("NCCL_ALGO"), "Tree");
  EXPECT_EQ(clean.set.at("NCCL_NVLS_ENABLE"), "1");
  EXPECT_EQ(clean.set.at("NCCL_NET"), "IB");
  EXPECT_THAT(clean.dropped, IsEmpty());
  EXPECT_THAT(clean.kept, IsEmpty());
}

TEST(NcclEnvironment, NobodyMakesItBlock) {
  EXPECT_EQ(
      Clean({"CKPTD_NCCL_COMM_BLOCKING=1", "NCCL_COMM_BLOCKING=1"}).set.at("NCCL_COMM_BLOCKING"),
      "0");
}

TEST(NcclEnvironment, TheSettingThatNamesTheLibraryIsNotNccls) {
  EXPECT_EQ(Clean({"CKPTD_NCCL_LIBRARY=/x", "CKPTD_NCCL_=1"}).set.size(), Clean({}).set.size());
}

TEST(NcclEnvironment, ItsTextNamesWhatBecameOfEach) {
  const std::string text = Clean({"NCCL_NET=Socket", "NCCL_COMM_ID=a:1"}).Text();
  EXPECT_THAT(text, HasSubstr("NCCL_RAS_ENABLE=0"));
  EXPECT_THAT(text, HasSubstr("kept NCCL_NET=Socket"));
  EXPECT_THAT(text, HasSubstr("dropped NCCL_COMM_ID"));
}

TEST(NcclEnvironment, ApplyingItChangesThisProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("NCCL_COMM_ID", "10.0.0.1:1", 1);
    ::setenv("NCCL_NET", "Socket", 1);
    ::setenv("CKPTD_NCCL_ALGO", "Tree", 1);
    ApplyNcclEnvironment(CleanNcclEnvironment(environ));
    const bool good = ::getenv("NCCL_COMM_ID") == nullptr &&
                      std::string(::getenv("NCCL_NET")) == "Socket" &&
                      std::string(::getenv("NCCL_ALGO")) == "Tree" &&
                      std::string(::getenv("NCCL_COMM_BLOCKING")) == "0";
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ckptd
