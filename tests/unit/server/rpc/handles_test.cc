// Which memory a client is given, by the kinds of handles that it accepts.
#include "server/rpc/handles.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

TEST(Handles, MemoryThatEndsWithTheDaemonMustBeNamed) {
  v1::AcquireShardRequest request;
  EXPECT_TRUE(Accepts(request, HandleKind::kMemfd));
  EXPECT_TRUE(Accepts(request, HandleKind::kVmmFd));
  EXPECT_FALSE(Accepts(request, HandleKind::kCudaIpc));
  request.add_accepted_kinds(v1::HANDLE_KIND_CUDA_IPC);
  EXPECT_TRUE(Accepts(request, HandleKind::kCudaIpc));
  EXPECT_FALSE(Accepts(request, HandleKind::kVmmFd));
}

}  // namespace
}  // namespace ckptd
