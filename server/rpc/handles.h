// The messages of an acquire, as far as they differ by the kind of a memory handle.
#ifndef CKPTD_SERVER_RPC_HANDLES_H_
#define CKPTD_SERVER_RPC_HANDLES_H_

#include <string>
#include <string_view>

#include "ckptd/v1/checkpoint_service.pb.h"
#include "common/base/attach_mode.h"
#include "common/base/handle_kind.h"
#include "server/catalog/shard_memory.h"

namespace ckptd {

// Whether the client takes memory of that kind. It must name a kind that ends with the daemon.
bool Accepts(const v1::AcquireShardRequest& request, HandleKind kind);
// The advice to a client that does not, as the end of a sentence.
std::string_view WhatToTry(HandleKind kind);
// How the client gets the memory. `device`: UUID of the GPU that has it.
void FillHandle(const ShardMemory& memory, AttachMode mode, const std::string& device,
                const std::string& fd_socket, v1::AcquireShardResponse& response);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_HANDLES_H_
