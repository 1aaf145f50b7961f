// The key with which trainers of a group authenticate messages to each other. Pure.
#ifndef CKPTD_SERVER_NODE_TRAINER_KEY_H_
#define CKPTD_SERVER_NODE_TRAINER_KEY_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace ckptd {

// HMAC-SHA256 of a fixed label under the group's secret: 32 bytes, the same on every rank. The
// key does not reveal the secret, which gives access to other ranks' memory. Trainers of another
// user (`guest`) have a key of their own.
std::string DeriveTrainerKey(std::string_view group_secret,
                             std::optional<uid_t> guest = std::nullopt);

}  // namespace ckptd

#endif  // CKPTD_SERVER_NODE_TRAINER_KEY_H_
