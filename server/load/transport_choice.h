// Which transport carries the bytes of a load: a pure function of what the leader knows when all
// ranks have answered.
#ifndef CKPTD_SERVER_LOAD_TRANSPORT_CHOICE_H_
#define CKPTD_SERVER_LOAD_TRANSPORT_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/protocol/reading.h"

namespace ckptd {

struct TransportFacts {
  CommChoice asked = CommChoice::kAuto;  // by the leader's settings
  std::string communicator;              // what the leader can join, "NCCL 2.30.7"; empty: none
  std::string no_communicator;           // why none
  bool failed_before = false;  // NCCL has exchanged nothing in this epoch of the group
  bool one_reader = true;      // of all bytes
  // A rank that would take part while a client of it holds a shard and may use the GPU.
  std::optional<uint32_t> busy_rank;
  struct Rank {
    uint32_t rank = 0;
    std::string host;
    std::string communicator;
    std::string no_communicator;
  };
  std::vector<Rank> ranks;  // that lack their shard
};

struct TransportChoice {
  CommChoice comm = CommChoice::kAuto;
  std::string no_comm;  // why a communicator carries nothing, for people; empty: it may
  std::string remark;   // for the log; empty: nothing to say
};
TransportChoice ChooseTransport(const TransportFacts& facts);

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_TRANSPORT_CHOICE_H_
